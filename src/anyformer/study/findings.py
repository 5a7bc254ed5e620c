"""What a study found: each claim with its verdict and with what the study could have seen, losses, compute, a scaling law."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.errors import UsageError
from anyformer.study.paired import (
    Difference,
    Ruling,
    Spread,
    corrected,
    differences,
    least_detectable,
    least_margin,
    lower,
    same,
    spread_of,
)
from anyformer.study.results import RunResult, Tuning
from anyformer.study.scaling import ScalingLaw, fit_law, times_as_much
from anyformer.study.specification import DELTA, ClaimSpec, LessCompute, LowerLoss, SameLoss, StudySpec
from anyformer.study.statistics import Interval
from anyformer.study.table import quantity
from anyformer.study.verdict import signed


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and the numbers that say so."""

    claim: ClaimSpec
    ruling: Ruling
    said: str


@dataclass(frozen=True)
class Findings:
    """All that a study's runs allow to be said."""

    spec: StudySpec
    about: str  # the text, with its fingerprint
    runs: Mapping[tuple[str, int, int], Sequence[RunResult]]  # by model, size and budget
    tuning: tuple[Tuning, ...]
    verdicts: tuple[Verdict, ...]
    spread: Spread  # of paired differences at the largest size and budget
    laws: Mapping[str, ScalingLaw]
    seconds: float  # of training, all runs together

    def as_json(self) -> dict[str, Any]:
        """Plain data: verdicts, losses by seed, learning rates and laws."""
        return {
            "version": 1,
            "title": self.spec.title,
            "data": self.about,
            "verdicts": [
                {"claim": one.claim.says, "kind": one.claim.kind, "ruling": one.ruling, "said": one.said}
                for one in self.verdicts
            ],
            "spread": {"sd": self.spread.sd if self.spread.df else None, "df": self.spread.df},
            "losses": [
                {
                    "model": name, "n_params": size, "tokens": tokens,
                    "seeds": {run.seed: run.validation_loss for run in runs},
                    "failures": {run.seed: run.failure for run in runs if run.failure},
                    "flops": runs[0].flops if runs else None,
                }
                for (name, size, tokens), runs in self.runs.items()
            ],
            "learning_rates": {one.architecture: one.chosen for one in self.tuning},
            "laws": {name: vars(law) for name, law in self.laws.items()},
            "seconds": self.seconds,
        }  # fmt: skip


def losses_of(runs: Sequence[RunResult]) -> dict[int, float]:
    """Final losses by seed, of the runs that reached one."""
    each = ((run.seed, run.validation_loss) for run in runs if run.finished)
    return {seed: loss for seed, loss in each if loss is not None and math.isfinite(loss)}


def find(
    spec: StudySpec, about: str, runs: Mapping[tuple[str, int, int], Sequence[RunResult]], tuning: tuple[Tuning, ...]
) -> Findings:
    """What the reported runs say of the claims."""
    size, tokens = max(spec.sizes), max(spec.tokens)
    losses = {model.name: losses_of(runs[model.name, size, tokens]) for model in spec.models}
    tested = [claim for claim in spec.claims if isinstance(claim, LowerLoss | SameLoss)]
    spread = spread_of(losses)
    given = dict(zip(map(id, tested), differences(losses, [(c.model, c.than) for c in tested]), strict=True))
    p_values = dict(zip(given, corrected(list(given.values())), strict=True))
    verdicts = []
    for claim in spec.claims:
        if isinstance(claim, LessCompute):
            verdicts.append(_of_compute(claim, spec, runs, size))
        else:
            failed = [run for name in (claim.model, claim.than) for run in runs[name, size, tokens] if run.failure]
            verdicts.append(_of_losses(claim, given[id(claim)], p_values[id(claim)], spread, len(tested), len(failed)))
    every = [run for each in runs.values() for run in each]
    return Findings(
        spec, about, runs, tuning, tuple(verdicts), spread, _laws(spec, runs), sum(run.seconds for run in every)
    )


def foreseen(spec: StudySpec) -> str:
    """What the study can see, said before it has run, by the spread that its file assumes."""
    tests = sum(isinstance(claim, LowerLoss | SameLoss) for claim in spec.claims)
    variants = max(1, len(spec.models) - 1)
    df = variants * (spec.seeds - 1)
    if not df:
        return "one seed: no difference can be told from chance"
    least, margin = (
        x * spec.sd for x in (least_detectable(spec.seeds, df, max(1, tests)), least_margin(spec.seeds, df))
    )
    return (
        f"with {spec.seeds} seeds and paired differences of deviation {spec.sd:g}, pooled over {variants}: the least difference "
        f"found four times in five is {least:.4f} nats a token, the least margin of equality {margin:.4f}"
    )


def _of_losses(
    claim: ClaimSpec, found: Difference | None, p_holm: float, spread: Spread, n_tests: int, n_failed: int
) -> Verdict:
    lost = f"; {n_failed} of its runs failed and count in no mean" if n_failed else ""
    if found is None:
        return Verdict(claim, "undecided", f"the models share no finished seed{lost}")
    if not spread.df:
        return Verdict(claim, "undecided", f"{signed(found.value, 4)} nats a token, of one seed{lost}")
    equal = isinstance(claim, SameLoss)
    delta = claim.within if isinstance(claim, SameLoss) else DELTA
    ruling = same(found, delta) if equal else lower(found, p_holm, DELTA)
    could = (least_margin if equal else least_detectable)(found.n, spread.df, *([] if equal else [n_tests])) * spread.sd
    shown, level = (found.equivalence, 90) if equal else (found.interval, 95)
    test = f"within ±{delta:g} by two one-sided tests" if equal else f"corrected p = {p_holm:.2g}"
    effect = f", {signed(found.effect, 1)} deviations" if found.effect is not None else ""
    seen = "the least margin it could show" if equal else "the least difference it could see"
    said = (
        f"{signed(found.value, 4)} nats a token ({level} % {_ends(shown)}{effect}; {found.n} pairs; {test}); "
        f"{seen}: {could:.4f}{lost}"
    )
    return Verdict(claim, ruling, said)


def _ends(interval: Interval) -> str:
    return "no interval" if interval.low is None else f"{signed(interval.low, 4)} to {signed(interval.high or 0.0, 4)}"


def _of_compute(
    claim: LessCompute, spec: StudySpec, runs: Mapping[tuple[str, int, int], Sequence[RunResult]], size: int
) -> Verdict:
    curves = []
    for name in (claim.model, claim.than):
        every = (runs[name, size, tokens] for tokens in spec.tokens)
        curves.append({each[0].flops: losses_of(each) for each in every if losses_of(each)})
    found = times_as_much(*curves) if all(curves) else {}
    if not found:
        return Verdict(claim, "undecided", "no loss was reached by both; nothing is said beyond what was run")
    said = "; ".join(f"to {loss:.3f} nats {_times(ratio)}" for loss, ratio in found.items())
    lows, highs = zip(*((each.low, each.high) for each in found.values()), strict=True)
    ruling: Ruling = "undecided"
    if None not in lows and min(lows) >= claim.times:
        ruling = "supported"
    elif None not in highs and max(highs) < claim.times:
        ruling = "contradicted"
    return Verdict(claim, ruling, f"{said} (95 % over seeds; {claim.times:g} was claimed)")


def _times(ratio: Interval) -> str:
    ends = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{ratio.value:.2f} times{ends}"


def _laws(spec: StudySpec, runs: Mapping[tuple[str, int, int], Sequence[RunResult]]) -> dict[str, ScalingLaw]:
    """L(N, D) of each model that has runs enough: three sizes and three budgets."""
    found = {}
    if len(spec.sizes) < 3 or len(spec.tokens) < 3:
        return {}
    for model in spec.models:
        points = [
            (run.n_params, run.tokens_seen, loss)
            for (name, *_), each in runs.items()
            for run in each
            if name == model.name and (loss := losses_of([run]).get(run.seed)) is not None
        ]
        try:
            found[model.name] = fit_law(*map(list, zip(*points, strict=True)))
        except (UsageError, TypeError):
            continue  # too many of its runs failed
    return found


def as_markdown(found: Findings, command: str) -> str:
    """The findings as a page."""
    return "\n".join(_lines(found, command)) + "\n"


def _lines(found: Findings, command: str) -> Iterator[str]:
    spec = found.spec
    ratio = max(spec.tokens) / max(spec.sizes)
    yield f"# {spec.title}"
    yield ""
    yield f"Up to {quantity(max(spec.sizes))} parameters and {quantity(max(spec.tokens))} tokens, {ratio:.2g} tokens a parameter."
    yield f"Data: {found.about}. {found.seconds / 60:.1f} minutes of training in the reported runs. Command: `{command}`."
    yield ""
    yield f"Said before the runs: {foreseen(spec)}."
    if found.spread.df:
        yield f"Measured: deviation {found.spread.sd:.4f} of paired differences, {found.spread.df} degrees of freedom."
    if found.verdicts:
        yield from ("", "| claim | verdict | numbers |", "|---|---|---|")
        yield from (f"| {one.claim.says} | **{one.ruling}** | {one.said} |" for one in found.verdicts)
    yield from ("", "| model | parameters | tokens | lr | loss by seed, nats a token | mean | FLOPs | tokens/s |")
    yield "|---|---:|---:|---:|---|---:|---:|---:|"
    for (name, _, tokens), runs in found.runs.items():
        losses = losses_of(runs)
        mean = f"{sum(losses.values()) / len(losses):.4f}" if losses else "–"
        each = [f"{losses[run.seed]:.4f}" if run.seed in losses else f"failed: {run.failure}" for run in runs]
        one = runs[0]
        speed = sum(run.tokens_per_second for run in runs) / len(runs)
        yield (
            f"| {name} | {quantity(one.n_params)} | {quantity(tokens)} | {one.learning_rate:g} | {', '.join(each)} | {mean} | "
            f"{quantity(one.flops)} | {speed:,.0f} |"
        )
    if found.tuning:
        yield from (
            "",
            "Learning rates, chosen on a part of the text and a seed that are not reported (loss there):",
            "",
        )
        for one in found.tuning:
            tried = (
                f"{trial.learning_rate:g} {'failed' if trial.validation_loss is None else f'{trial.validation_loss:.4f}'}"
                for trial in one.trials
            )
            yield f"- {one.architecture}: {', '.join(tried)}; chosen {one.chosen:g}"
    for name, law in found.laws.items():
        yield from (
            "",
            f"{name}: L(N, D) = {law.E:.3f} + {law.A:.4g} / N^{law.alpha:.3f} + {law.B:.4g} / D^{law.beta:.3f}, for the range "
            "that was run alone.",
        )
