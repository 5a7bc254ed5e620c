"""The results table, one row an architecture: as data, for the report and `--json`; for a terminal, at 100 columns or at 80."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from anyformer.amounts import count, prefixed, signed
from anyformer.study.encoding import encode
from anyformer.study.results import RunResult, Study
from anyformer.study.statistics import Analysis, ArchitectureFinding
from anyformer.tables import FittedTable

JSON_VERSION = 2
FULL_WIDTH = 98
NO_VALUE = "–"


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
    finding: ArchitectureFinding


def result_rows(study: Study, analysis: Analysis) -> tuple[ResultRow, ...]:
    """One row for each architecture of `study`, in its order."""
    return tuple(_row(study, study.of(finding.architecture), finding) for finding in analysis.findings)


def as_json(study: Study, analysis: Analysis) -> dict[str, Any]:
    """The comparison's answer as plain JSON values; docs/json.md says what each key means. What is unknown is null."""
    return {
        "version": JSON_VERSION,
        **{name: getattr(study, name) for name in ("title", "command", "date", "score", "unit", "counted")},
        **{name: getattr(study, name) for name in ("flops_convention", "early")},
        "higher": study.judged.higher,
        "method": analysis.method,
        "first": analysis.first,
        "sentences": list(analysis.sentences),
        "baselines": encode(study.baselines),
        "rows": encode(result_rows(study, analysis)),
    }


def _row(study: Study, runs: tuple[RunResult, ...], finding: ArchitectureFinding) -> ResultRow:
    finished = [run for run in runs if run.finished]
    speed = _mean([run.tokens_per_second for run in finished])
    loss = _mean([run.validation_loss for run in finished])
    peak, one = study.peak_flops_per_second, runs[0]
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


def fixed(value: float | None, digits: int) -> str:
    return NO_VALUE if value is None else f"{value:,.{digits}f}"


def results_table(study: Study, analysis: Analysis, *, width: int) -> RenderableType:
    """What to print on a terminal of `width` columns: the table, failures, baselines, what can be said."""
    rows = result_rows(study, analysis)
    full = width >= FULL_WIDTH
    table = FittedTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", collapse_padding=True)
    table.add_column("architecture", overflow="fold", max_width=16 if full else 20)
    for name in _columns(study, full):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(study.judged.column, justify="right", no_wrap=True)
    first = Text(f"to {analysis.first}" if len(rows) > 1 else "")
    table.add_column(first, justify="right", overflow="fold", max_width=16)
    pick = max if study.judged.higher else min
    best = pick((row.finding.score.value for row in rows if row.finding.score), default=None)
    for row in rows:
        table.add_row(*_cells(study, row, full=full, best=best), end_section=True)
    return Group(Text(study.title, style="bold"), Text(), table, *_lines(study, analysis, rows))


def _columns(study: Study, full: bool) -> list[str]:
    """The columns between the architecture and the score; a loss that is the score stands there alone."""
    speed = f"{study.counted}s\n/s"
    loss = [] if study.score == "loss" else ["loss\n(nats)"]
    if not full:
        return ["params", speed, *loss]
    text = ["per-\nplexity"] if study.score == "bits_per_byte" else []
    return ["params", f"FLOPs/\n{study.counted}", speed, "early\nloss", *loss, *text]


def _cells(study: Study, row: ResultRow, *, full: bool, best: float | None) -> list[Text]:
    name = Text(row.architecture, style="bold")
    if row.failures:
        n_runs = len(row.failures) + len(row.seeds)
        name.append(f"\n{len(row.failures)} of {n_runs} failed" if row.seeds else "\nfailed", style="red")
    params = _two(count(row.n_params), f"{count(row.n_params_embedding)} emb")
    share = "" if row.share_of_peak is None else f"{row.share_of_peak:.0%} peak"
    speed = _two(fixed(row.tokens_per_second, 0), share)
    failed = Text("failed", style="red")
    loss = [] if study.score == "loss" else [Text(fixed(row.validation_loss, 4)) if row.seeds else failed]
    middle = [params, speed, *loss]
    if full:
        text = [Text(fixed(row.perplexity, 2))] if study.score == "bits_per_byte" else []
        early = Text(fixed(row.early_loss, 3))
        middle = [params, Text(prefixed(row.flops_per_token)), speed, early, *loss, *text]
    score, difference = row.finding.score, row.finding.difference
    style = "bold green" if score is not None and score.value == best else ""
    return [
        name,
        *middle,
        Text() if score is None else _two(f"{score.value:.4f}", score.ends("{:.3f}".format, " … "), style),
        Text() if difference is None else _two(signed(difference.value, 4), difference.ends(signed, " … ")),
    ]


def _two(above: str, below: str, style: str = "") -> Text:
    text = Text(above, style=style)
    return text.append(f"\n{below}", style="dim") if below else text


def _lines(study: Study, analysis: Analysis, rows: tuple[ResultRow, ...]) -> list[Text]:
    lines = [Text()]
    failures = [(row.architecture, failure) for row in rows for failure in row.failures]
    lines += [Text(f"{name}, seed {one.seed} failed: {one.reason}", style="red") for name, one in failures]
    if study.baselines:
        shown = ", ".join(f"{line.name} {line.score:.4f}" for line in study.baselines)
        lines.append(Text(f"For scale, {study.judged.words}: {shown}. Early loss: {study.early}.", style="dim"))
    if analysis.method == "seeds":
        each = "; ".join(
            f"{row.architecture} {', '.join(f'{score:.4f}' for score in row.scores)}" for row in rows if row.scores
        )
        lines.append(Text(f"By seed: {each}.", style="dim"))
    compared = [row.finding for row in rows if row.finding.difference is not None]
    lines += [Text(f"{finding.architecture}: {finding.verdict}.") for finding in compared]
    return [*lines, *(Text(sentence, style="dim") for sentence in analysis.sentences)]
