"""The results table as data, one row an architecture: what the terminal, the report and `--json` all show."""

import math
from dataclasses import dataclass
from typing import Any

from anyformer.study.encoding import encode
from anyformer.study.results import RunResult, Study
from anyformer.study.statistics import Analysis, Finding

JSON_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Failure:
    seed: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """Means over the finished runs of one architecture; None where none finished."""

    architecture: str
    n_params: int
    n_params_embedding: int
    n_params_non_embedding: int
    flops_per_token: float
    learning_rate: float
    seeds: tuple[int, ...]  # finished
    scores: tuple[float, ...]  # of each of these, what the study judges by
    failures: tuple[Failure, ...]
    tokens_per_second: float | None
    share_of_peak: float | None  # achieved training FLOPs per second over the machine's measured peak, 0 to 1
    early_loss: float | None
    validation_loss: float | None  # in the study's unit
    perplexity: float | None  # exp of `validation_loss`: over several seeds the geometric mean; None but of text
    accuracy: float | None  # share of labels that are said rightly; None where that is not counted
    finding: Finding


def result_rows(study: Study, analysis: Analysis) -> tuple[ResultRow, ...]:
    """One row for each architecture of `study`, in its order."""
    return tuple(_row(study, study.of(finding.architecture), finding) for finding in analysis.findings)


def as_json(study: Study, analysis: Analysis) -> dict[str, Any]:
    """The comparison's answer as plain JSON values.

    - `version`: of these keys, 2
    - `title`, `command`, `date`: of the study
    - `score`: what is judged by: "bits_per_byte", "accuracy" or "loss"; `higher`: whether more of it is better
    - `unit`: of losses, such as "nats per token"; `counted`: what is predicted, "token" or "label"
    - `method`: "documents" (one seed: intervals over validation documents) or "seeds"
    - `first`: the architecture that the others are compared to
    - `sentences`: what the intervals mean and what they don't, in plain words
    - `baselines`: objects of `name`, `score`, `loss`
    - `rows`: one object an architecture: `architecture`, `n_params`, `n_params_embedding`, `n_params_non_embedding`,
      `flops_per_token` (training, per `flops_convention`), `learning_rate`, `seeds` (finished), `scores` (of each),
      `failures` (objects of `seed`, `reason`), `tokens_per_second`, `share_of_peak` (0 to 1), `early_loss` (what `early` says),
      `validation_loss`, `perplexity` (of text alone), `accuracy` (of classes alone), and `finding`: `architecture`,
      `n_seeds`, `score` and `difference` (objects of `value`, `low`, `high`), `p_value`, `p_holm`, `claim`, `verdict`.
      What is unknown is null.
    """
    return {
        "version": JSON_VERSION,
        "title": study.title,
        "command": study.command,
        "date": study.date,
        "score": study.score,
        "higher": study.judged.higher,
        "unit": study.unit,
        "counted": study.counted,
        "method": analysis.method,
        "first": analysis.first,
        "flops_convention": study.flops_convention,
        "early": study.early,
        "sentences": list(analysis.sentences),
        "baselines": encode(study.baselines),
        "rows": encode(result_rows(study, analysis)),
    }


def _row(study: Study, runs: tuple[RunResult, ...], finding: Finding) -> ResultRow:
    finished = [run for run in runs if run.finished]
    speed = _mean([run.tokens_per_second for run in finished])
    loss = _mean([run.validation_loss for run in finished])
    peak, one = study.machine.peak_flops_per_second, runs[0]
    return ResultRow(
        architecture=one.architecture,
        n_params=one.n_params,
        n_params_embedding=one.n_params_embedding,
        n_params_non_embedding=one.n_params_non_embedding,
        flops_per_token=one.flops_per_token,
        learning_rate=one.learning_rate,
        seeds=tuple(run.seed for run in finished),
        scores=tuple(score for run in finished if (score := run.scored(study.judged)) is not None),
        failures=tuple(Failure(seed=run.seed, reason=run.failure) for run in runs if run.failure is not None),
        tokens_per_second=speed,
        share_of_peak=speed * one.flops_per_token / peak if speed is not None and peak else None,
        early_loss=_mean([run.early_loss for run in finished]),
        validation_loss=loss,
        perplexity=None if loss is None or study.score != "bits_per_byte" else math.exp(min(loss, 700.0)),
        accuracy=_mean([run.accuracy for run in finished]),
        finding=finding,
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
