"""What a comparison's numbers allow to be said: intervals, paired tests, and a verdict in plain words.

With one seed the only randomness that was sampled is the choice of validation documents: BCa bootstrap of a ratio of
sums (Efron 1987, doi:10.1080/01621459.1987.10478410). With several seeds: Student's t over seeds, paired by seed,
corrected for several comparisons (Holm 1979, jstor.org/stable/4615733).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyformer.study.paired import CONFIDENCE, Interval, difference, holm, paired, spread_of_pairs
from anyformer.study.results import RunResult, Score, Study
from anyformer.study.verdict import (
    NONE_FINISHED,
    NOTHING_TO_COMPARE,
    of_documents,
    of_seeds,
    one_seed_sentences,
    several_seeds_sentences,
)

N_RESAMPLES = 9_999
MAX_DRAWS = 100_000_000  # resamples × documents; beyond it fewer resamples, about 2 s of one core
BCA_DOCUMENTS = 2_000  # the jackknife of BCa is quadratic; with more documents the plain percentile is as good


@dataclass(frozen=True)
class ArchitectureFinding:
    """What can be said of one architecture, in what the study judges by; differences are to the first."""

    architecture: str
    n_seeds: int  # finished runs
    score: Interval | None = None
    difference: Interval | None = None
    p_value: float | None = None  # paired t-test by seed, two-sided
    p_holm: float | None = None  # corrected for the number of comparisons
    claim: bool = False  # a difference between the architectures, trained this way on this data, can be claimed
    verdict: str = ""


@dataclass(frozen=True)
class Analysis:
    method: Literal["documents", "seeds"]  # what was sampled: validation documents (one seed), or training runs
    first: str
    findings: tuple[ArchitectureFinding, ...]
    sentences: tuple[str, ...]  # what the intervals mean, and what they don't

    def of(self, architecture: str) -> ArchitectureFinding:
        return next(finding for finding in self.findings if finding.architecture == architecture)


def analyse(study: Study) -> Analysis:
    """What `study` allows to be said; the same for the same study."""
    finished = {name: [run for run in study.of(name) if run.finished] for name in study.architectures}
    if not any(finished.values()):
        unfinished = tuple(ArchitectureFinding(name, 0, verdict=NONE_FINISHED) for name in finished)
        return Analysis("documents", next(iter(finished)), unfinished, (NOTHING_TO_COMPARE,))
    if max(len(runs) for runs in finished.values()) > 1:
        return _over_seeds(study.judged, finished, {name: len(study.of(name)) for name in finished})
    return _over_documents(study.judged, finished, study.documents)


def bootstrap_ratio(numerator: Sequence[float], denominator: Sequence[float], *, seed: int = 0) -> Interval:
    """Σ numerator / Σ denominator with a BCa bootstrap interval over their pairs (documents).

    Fewer than two documents allow no interval. Above `BCA_DOCUMENTS` the percentile interval is returned.
    """
    from scipy.stats import DegenerateDataWarning, bootstrap

    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    value = float(above.sum() / below.sum())
    n_documents = len(above)
    if n_documents < 2:
        return Interval(value)
    if np.ptp(above - value * below) == 0:  # every document has the same ratio: there is nothing to resample
        return Interval(value, value, value)

    def ratio(a: NDArray[np.float64], b: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        return a.sum(axis=axis) / b.sum(axis=axis)

    def ends(method: Literal["BCa", "percentile"]) -> tuple[float, float]:
        interval = bootstrap(
            (above, below), ratio, paired=True, vectorized=True, method=method, confidence_level=CONFIDENCE,
            n_resamples=max(999, min(N_RESAMPLES, MAX_DRAWS // n_documents)), batch=max(1, 1_000_000 // n_documents),
            rng=np.random.default_rng(seed),
        ).confidence_interval  # fmt: skip
        return float(interval.low), float(interval.high)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # answered below
        low, high = ends("BCa" if n_documents <= BCA_DOCUMENTS else "percentile")
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = ends("percentile")
    return Interval(value, low, high)


def paired_documents(score: Score, ours: RunResult, theirs: RunResult) -> Interval:
    """Our score minus theirs, paired: each document is drawn for both at once."""
    above, below = score.parts(ours.documents, ours.right)
    other, _ = score.parts(theirs.documents, theirs.right)
    return bootstrap_ratio([a - b for a, b in zip(above, other, strict=True)], below)


def t_interval(values: Sequence[float]) -> Interval:
    """The mean of `values` with Student's 95 % interval; fewer than two values allow none."""
    return difference(values, spread_of_pairs(values)).interval


def _over_documents(score: Score, finished: dict[str, list[RunResult]], called: str) -> Analysis:
    first = next(iter(finished))
    reference = finished[first][0] if finished[first] else None
    findings = []
    for name, runs in finished.items():
        if not runs:
            findings.append(ArchitectureFinding(name, 0, verdict=NONE_FINISHED))
            continue
        one, difference = runs[0], None
        if reference is not None and name != first:
            difference = paired_documents(score, one, reference)
        verdict = of_documents(name, first, difference, score)
        value = bootstrap_ratio(*score.parts(one.documents, one.right))
        findings.append(ArchitectureFinding(name, 1, value, difference, verdict=verdict))
    n_documents = max(len(runs[0].documents) for runs in finished.values() if runs)
    return Analysis("documents", first, tuple(findings), one_seed_sentences(n_documents, score, called))


def _over_seeds(score: Score, finished: dict[str, list[RunResult]], n_runs: dict[str, int]) -> Analysis:
    first = next(iter(finished))
    scores = {name: {run.seed: run.scored(score) or 0.0 for run in runs} for name, runs in finished.items()}
    pairs = {name: paired(scores, name, first) for name in scores if name != first}
    compared = {name: difference(each, spread_of_pairs(each)) for name, each in pairs.items() if each}
    p_values = {name: one.p_value for name, one in compared.items() if one.n > 1}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    findings = []
    for name, of_seed in scores.items():
        mean = t_interval(list(of_seed.values())) if of_seed else None
        apart, n_shared = compared[name].interval if name in compared else None, len(pairs.get(name, ()))
        p_holm = corrected.get(name)
        claim = p_holm is not None and p_holm < 1 - CONFIDENCE
        verdict = of_seeds(name, first, apart, p_holm, n_shared=n_shared, n_finished=len(of_seed), score=score)
        findings.append(
            ArchitectureFinding(name, len(of_seed), mean, apart, p_values.get(name), p_holm, claim, verdict)
        )
    counts = [len(of_seed) for of_seed in scores.values() if of_seed]
    sentences = several_seeds_sentences(counts, len(p_values))
    survivors = tuple(
        f"{name} finished {len(runs)} of {n_runs[name]} runs: its values are over those, which may flatter it."
        for name, runs in finished.items()
        if 0 < len(runs) < n_runs[name]
    )
    return Analysis("seeds", first, tuple(findings), (*sentences, *survivors))
