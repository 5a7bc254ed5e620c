"""Each claim of a study held against its runs: supported, contradicted or undecided, and the numbers that say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from anyformer.amounts import signed
from anyformer.study.order import agreement
from anyformer.study.paired import (
    CONFIDENCE,
    Difference,
    Interval,
    Ruling,
    Spread,
    corrected,
    difference,
    least_detectable,
    least_margin,
    lower,
    paired,
    same,
    spread_of,
    spread_of_pairs,
)
from anyformer.study.results import RunResult, Tuning
from anyformer.study.scaling import final_loss, times_as_much
from anyformer.study.specification import (
    DELTA,
    ClaimSpec,
    LessCompute,
    LessSensitive,
    LossPairSpec,
    SameLoss,
    SameOrder,
    StudySpec,
)

Reported = Mapping[tuple[str, int, int], Sequence[RunResult]]  # runs by model, size and budget


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and the numbers that say so."""

    claim: ClaimSpec
    ruling: Ruling
    said: str


def losses_of(runs: Sequence[RunResult], length: int | None = None, last: int | None = None) -> dict[int, float]:
    """Final losses by seed, of the runs that reached one; in windows of a `length`, of those that have it."""
    if length is None:
        each = ((run.seed, final_loss(run)) for run in runs)
    else:
        each = (
            (run.seed, window.loss(last))
            for run in runs
            for window in run.windows
            if run.finished and window.length == length
        )
    return {seed: loss for seed, loss in each if loss is not None and math.isfinite(loss)}


def sensitivity(spec: StudySpec, tuning: Sequence[Tuning], name: str) -> dict[int, float]:
    """By seed that chooses rates: how far above its least a model's loss is, on average over the study's rates for it.

    A loss above that of the uniform distribution counts as that, as one that is no number does.
    """
    uniform = math.log(spec.vocab_size)
    rates = next(spec.rates_of(model) for model in spec.models if model.name == name)
    trials = (each for one in tuning if (one.architecture, one.size) == (name, max(spec.sizes)) for each in one.trials)
    rows = [trial.seeds for trial in trials if trial.learning_rate in rates]
    found = {}
    for at, seed in enumerate(spec.choosing if rows else ()):
        losses = (row[at] for row in rows)
        held = [uniform if loss is None or not loss < uniform else loss for loss in losses]
        found[seed] = fmean(held) - min(held)
    return found


def judged(spec: StudySpec, runs: Reported, tuning: Sequence[Tuning] = ()) -> tuple[Verdict, ...]:
    """The verdict on each claim, at the largest size and budget; p of all tested differences corrected together by Holm."""
    size, tokens = max(spec.sizes), max(spec.tokens)
    largest = {model.name: runs[model.name, size, tokens] for model in spec.models}
    losses = {name: losses_of(each) for name, each in largest.items()}
    pooled, tested = spread_of(losses), dict[int, tuple[Difference | None, Spread]]()
    for claim in spec.claims:
        # Beyond the trained length, and of rates, models' differences vary too much to be pooled: those speak for themselves.
        if isinstance(claim, LossPairSpec) and claim.readings == (None, None):
            pairs, spread = paired(losses, *claim.names), pooled
        elif isinstance(claim, LossPairSpec):
            sides = zip(("model", "than"), claim.names, claim.readings, strict=True)
            read = {side: losses_of(largest[name], length, claim.last) for side, name, length in sides}
            spread = spread_of_pairs(pairs := paired(read, "model", "than"))
        elif isinstance(claim, LessSensitive):
            told = {name: sensitivity(spec, tuning, name) for name in claim.names}
            spread = spread_of_pairs(pairs := paired(told, *claim.names))
        else:
            continue
        tested[id(claim)] = (difference(pairs, spread) if pairs else None), spread
    p_values = dict(zip(tested, corrected([found for found, _ in tested.values()]), strict=True))
    verdicts = []
    for claim in spec.claims:
        if isinstance(claim, LossPairSpec | LessSensitive):
            reported = set(claim.names) if isinstance(claim, LossPairSpec) else ()
            lost = _lost(run for name in reported for run in largest[name])
            verdicts.append(_of_losses(claim, *tested[id(claim)], p_values[id(claim)], len(tested), lost))
        elif isinstance(claim, LessCompute):
            verdicts.append(_of_compute(claim, spec, runs, size))
        elif isinstance(claim, SameOrder):
            verdicts.append(_of_order(claim, losses))
        else:
            raise TypeError(f"{claim.kind} has no test")
    return tuple(verdicts)


def _of_losses(
    claim: LossPairSpec | LessSensitive,
    found: Difference | None,
    spread: Spread,
    p_holm: float,
    n_tests: int,
    lost: str,
) -> Verdict:
    if found is None:
        return Verdict(claim, "undecided", f"the models share no finished seed{_where(claim)}{lost}")
    if not spread.df:
        return Verdict(claim, "undecided", f"{_four(found.value)} nats a token, of one seed{lost}")
    if isinstance(claim, SameLoss):
        ruling, shown = same(found, claim.within), f"90 % {found.equivalence.ends(_four)}"
        test = f"within ±{claim.within:g} by two one-sided tests"
        could = f"the least margin it could show: {least_margin(found.n, spread.df) * spread.sd:.4f}"
    else:
        delta = DELTA if isinstance(claim, LossPairSpec) else 0.0
        ruling, shown = lower(found, p_holm, delta), f"95 % {found.interval.ends(_four)}"
        test = f"corrected p = {p_holm:.2g}"
        could = f"the least difference it could see: {least_detectable(found.n, spread.df, n_tests) * spread.sd:.4f}"
    effect = f", {signed(found.effect, 1)} deviations" if found.effect is not None else ""
    said = f"{_four(found.value)} nats a token{_where(claim)} ({shown}{effect}; {found.n} pairs; {test}); {could}{lost}"
    return Verdict(claim, ruling, said)


def _lost(runs: Iterable[RunResult]) -> str:
    """How many of a claim's runs failed."""
    failed = sum(run.failure is not None for run in runs)
    return f"; {failed} of its runs failed and count in no mean" if failed else ""


def _where(claim: LossPairSpec | LessSensitive) -> str:
    """The windows, or rates, that a claim speaks of."""
    if isinstance(claim, LessSensitive):
        return " of sensitivity to the rate"
    ours, theirs = (length and f"{length:,}" for length in claim.readings)
    if ours is None and theirs is None:
        return ""
    against = "" if ours == theirs else f" against {theirs or 'rows as in training'}"
    part = f", the last {claim.last} tokens" if claim.last else ""
    return f" in windows of {ours or 'rows as in training'}{against}{part}"


def _four(loss: float) -> str:
    return signed(loss, 4)


def _of_compute(claim: LessCompute, spec: StudySpec, runs: Reported, size: int) -> Verdict:
    found = _cost_of(claim, spec, runs, size, lambda run: run.flops)
    lost = _lost(run for name in claim.names for tokens in spec.tokens for run in runs[name, size, tokens])
    if not found:
        return Verdict(claim, "undecided", f"no loss was reached by both; nothing is said beyond what was run{lost}")
    said = "; ".join(f"to {loss:.3f} nats {_times(ratio)}" for loss, ratio in found.items())
    lows, highs = zip(*((each.low, each.high) for each in found.values()), strict=True)
    ruling: Ruling = "undecided"
    if None not in lows and min(lows) >= claim.times:
        ruling = "supported"
    elif None not in highs and max(highs) < claim.times:
        ruling = "contradicted"
    others = {"tokens": lambda run: float(run.tokens_seen), "seconds": lambda run: run.seconds}
    beside = (
        f"; {name} " + ", ".join(f"{ratio.value:.2f}" for ratio in _cost_of(claim, spec, runs, size, cost).values())
        for name, cost in others.items()
    )
    return Verdict(claim, ruling, f"{said} (95 % over seeds; {claim.times:g} was claimed{''.join(beside)} times){lost}")


def _cost_of(
    claim: LessCompute, spec: StudySpec, runs: Reported, size: int, cost: Callable[[RunResult], float]
) -> dict[float, Interval]:
    """How many times as much `than` takes of what its runs cost, to each of three losses that both reached."""
    curves = []
    for name in claim.names:
        every = ([run for run in runs[name, size, tokens] if final_loss(run) is not None] for tokens in spec.tokens)
        curves.append({fmean(map(cost, each)): losses_of(each) for each in every if each})
    return times_as_much(*curves) if all(curves) else {}


def _times(ratio: Interval) -> str:
    ends = ratio.ends("{:.2f}".format)
    return f"{ratio.value:.2f} times" + (f" ({ends})" if ends else "")


def _of_order(claim: SameOrder, losses: Mapping[str, Mapping[int, float]]) -> Verdict:
    """Supported where chance seldom agrees as well, with the extremes and without; contradicted where it mostly does better."""
    published = {each.model: each.loss for each in claim.published}
    inner = {name: loss for name, loss in published.items() if name not in claim.extremes}
    found = [agreement(losses, each) for each in ([published, inner] if claim.extremes else [published])]
    if None in found:
        return Verdict(claim, "undecided", "too few of its models share a finished seed, or all their losses are one")
    alpha, known = 1 - CONFIDENCE, [each for each in found if each is not None]
    ruling: Ruling = "undecided"
    if all(each.p_value < alpha for each in known):
        ruling = "supported"
    elif all(each.p_value > 1 - alpha for each in known):
        ruling = "contradicted"
    said = "; ".join(
        f"ρ = {each.rho.value:.2f} of {each.n} models ({_over_seeds(each.rho)}one-sided p = {each.p_value:.2g})"
        for each in known
    )
    return Verdict(claim, ruling, said + (", the latter without extremes" if claim.extremes else ""))


def _over_seeds(rho: Interval) -> str:
    ends = rho.ends("{:.2f}".format)
    return f"95 % over seeds {ends}; " if ends else ""
