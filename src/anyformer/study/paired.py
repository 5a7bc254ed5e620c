"""Paired differences of losses over seeds, with one variance for all variants of a study; what such a study can see.

Student's t on one standard deviation of all models, Holm's correction, and equivalence by two one-sided tests
(Schuirmann 1987, doi:10.1007/BF01068419). Three seeds' own deviations see almost nothing; together they see what eight would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
POWER = 0.8
Ruling = Literal["supported", "contradicted", "undecided"]


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval; the ends are None where the data allow none."""

    value: float
    low: float | None = None
    high: float | None = None

    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def ends(self, shown: Callable[[float], str], between: str = " to ") -> str:
        """Both ends in words; "" where there are none."""
        return "" if self.low is None or self.high is None else f"{shown(self.low)}{between}{shown(self.high)}"


@dataclass(frozen=True)
class Spread:
    """The standard deviation of paired differences, one for all variants of a study."""

    sd: float
    df: int  # degrees of freedom; 0: no two models have two seeds in common


@dataclass(frozen=True)
class Difference:
    """A loss less another's, paired by seed, in nats a token."""

    value: float
    n: int  # pairs
    interval: Interval  # 95 %
    equivalence: Interval  # 90 %: within ±δ, two one-sided tests at 5 % say the same
    p_value: float  # two-sided
    effect: float | None  # in standard deviations of the pairs; None where they do not vary


def spread_of_pairs(pairs: Sequence[float]) -> Spread:
    """The spread of one variant's differences: exactly 0 where they are equal, whatever rounding makes of their mean."""
    if len(pairs) < 2:
        return Spread(math.nan, 0)
    return Spread(float(np.std(pairs, ddof=1)) if np.ptp(pairs) else 0.0, len(pairs) - 1)


def difference(pairs: Sequence[float], spread: Spread) -> Difference:
    """What the differences of one variant say. Without a spread there is no interval, and p is 1."""
    from scipy.stats import t

    value, n = float(np.mean(pairs)), len(pairs)
    if not spread.df:
        return Difference(value, n, Interval(value), Interval(value), 1.0, None)
    error = spread.sd / math.sqrt(n)
    half, third = (float(t.ppf(share, spread.df)) * error for share in (0.5 + CONFIDENCE / 2, CONFIDENCE))
    if error == 0:
        p, effect = float(value == 0), None
    else:
        p, effect = float(2 * t.sf(abs(value) / error, spread.df)), value / spread.sd
    return Difference(
        value, n, Interval(value, value - half, value + half), Interval(value, value - third, value + third), p, effect
    )


Losses = Mapping[str, Mapping[int, float]]  # by model and seed


def paired(losses: Losses, model: str, than: str) -> list[float]:
    """The losses of one model less another's, of the seeds that both have."""
    shared = sorted(losses[model].keys() & losses[than].keys())
    return [losses[model][seed] - losses[than][seed] for seed in shared]


def spread_of(losses: Losses) -> Spread:
    """The spread of differences between two of the models, from what their losses and seeds leave unexplained.

    That is √2 times the deviation of a loss from the sum of a term of its model and one of its seed (two-way analysis of
    variance without interaction). All differences to one model share that model's noise: pooled themselves, they would say
    less than their number.
    """
    cells = [(model, seed, loss) for model, of in losses.items() for seed, loss in of.items()]
    named = dict.fromkeys(term for model, seed, _ in cells for term in (model, seed))
    terms = {term: i for i, term in enumerate(named)}
    design = np.zeros((len(cells), len(terms)))
    for row, (model, seed, _) in zip(design, cells, strict=True):
        row[[terms[model], terms[seed]]] = 1.0
    y = np.array([loss for *_, loss in cells])
    solution, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    df = len(cells) - int(rank)
    return Spread(math.sqrt(2 * float(((y - design @ solution) ** 2).sum()) / df) if df else math.nan, df)


def lower(given: Difference, p_holm: float, delta: float) -> Ruling:
    """Whether the loss is lower: by the corrected test; contradicted where it is higher, or the same within δ (0: never)."""
    if p_holm < 1 - CONFIDENCE:
        return "supported" if given.value < 0 else "contradicted"
    return "contradicted" if within(given, delta) else "undecided"


def same(given: Difference, delta: float) -> Ruling:
    """Whether the losses are the same within δ; contradicted where the 95 % interval lies wholly beyond it."""
    if within(given, delta):
        return "supported"
    low, high = given.interval.low, given.interval.high
    return "contradicted" if low is not None and high is not None and (low > delta or high < -delta) else "undecided"


def within(given: Difference, delta: float) -> bool:
    """Whether two one-sided tests, each at 5 %, say that the difference lies in ±δ."""
    low, high = given.equivalence.low, given.equivalence.high
    return low is not None and high is not None and -delta < low and high < delta


def holm(p_values: Sequence[float]) -> list[float]:
    """`p_values` corrected for their number by Holm's step-down procedure, in the order given."""
    corrected, floor = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        floor = max(floor, min(1.0, (len(p_values) - rank) * p_values[at]))
        corrected[at] = floor
    return corrected


def corrected(found: Sequence[Difference | None]) -> list[float]:
    """The p of each corrected by Holm for how many there are; 1 for what could not be tested, which counts too."""
    return holm([each.p_value if each else 1.0 for each in found])


def power(effect: float, n: int, df: int, alpha: float = 1 - CONFIDENCE) -> float:
    """The chance that a true difference of `effect` standard deviations of the pairs is found in n of them."""
    from scipy.stats import nct, t

    limit, shift = float(t.ppf(1 - alpha / 2, df)), effect * math.sqrt(n)
    found, wrong = float(nct.sf(limit, df, shift)), float(nct.cdf(-limit, df, shift))
    # Far out scipy has no number for either: the one is certain there, and the other cannot be.
    return (1.0 if math.isnan(found) else found) + (0.0 if math.isnan(wrong) else wrong)


def least_detectable(n: int, df: int, n_tests: int = 1) -> float:
    """The difference, in standard deviations of n pairs, that is found four times in five; of several tests by Holm's first."""
    return _where(lambda effect: power(effect, n, df, (1 - CONFIDENCE) / n_tests))


def _where(shown: Callable[[float], float]) -> float:
    """Where what rises from 0 to 1 reaches the power that is wanted."""
    from scipy.optimize import root_scalar

    high = 1.0
    while shown(high) < POWER:
        high *= 2
    return float(root_scalar(lambda at: shown(at) - POWER, bracket=(0.0, high)).root)


def least_margin(n: int, df: int) -> float:
    """The least δ, in standard deviations of the pairs, that two equal models are shown to be within four times in five."""
    from scipy.integrate import fixed_quad
    from scipy.stats import chi, norm, t

    limit = float(t.ppf(CONFIDENCE, df))
    # Beyond these s hardly comes.
    least, greatest = (float(end) / math.sqrt(df) for end in chi.ppf([1e-12, 1 - 1e-12], df))

    def shown(margin: float) -> float:
        """Over the deviations s that could be found: the chance that the mean lies within margin - limit · s."""
        most = min(margin * math.sqrt(n) / limit, greatest)

        def at(s: NDArray[np.float64]) -> NDArray[np.float64]:
            room = margin * math.sqrt(n) - limit * s
            return (2 * norm.cdf(room) - 1) * chi.pdf(s * math.sqrt(df), df) * math.sqrt(df)

        return float(fixed_quad(at, least, most, n=100)[0]) if most > least else 0.0

    return _where(shown)
