"""Scaling laws fitted to final losses: L(N, D), minima at equal FLOPs, and how many times the compute to the same loss.

L = E + A / N^α + B / D^β by the Huber loss of logarithms, from a grid of starts (Hoffmann et al. 2022, arXiv:2203.15556, section
3.3), summed and not averaged, since with averages optimisers stop early (Besiroglu et al. 2024, arXiv:2404.10102).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anyformer.costs.scaling_law import ScalingLaw
from anyformer.disk import plain
from anyformer.errors import UsageError, among
from anyformer.study.paired import Interval
from anyformer.study.results import RunResult

HUBER = 1e-3
DISTINCT = 6  # runs that tell five constants apart
STARTS = tuple(itertools.product((0.0, 5.0, 10.0, 15.0, 20.0, 25.0), repeat=2))  # of ln A and ln B
EXPONENTS = tuple(itertools.product((0.0, 0.5, 1.0, 1.5, 2.0), repeat=2))
NEAREST = 100  # starts
LEVELS = 9  # of FLOPs, at which sizes are compared
ROUNDING = 1e-9  # of levels of FLOPs, by which a size's first and last budget are at them
FLOORS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of ln E
BOUNDS = ((-700.0, 700.0),) * 3 + ((None, None),) * 2  # within which ln A, ln B and ln E are of numbers
Array = NDArray[np.float64]


def fit_law(
    n_params: Sequence[float],
    tokens: Sequence[float],
    losses: Sequence[float],
    *,
    starts: Sequence[tuple[float, ...]] | None = None,
) -> ScalingLaw:
    """The law of least objective over starts (ln A, ln B, ln E, α, β), by L-BFGS with its gradient.

    Unless told, those are the hundred of Hoffmann's 4,500 that are nearest; from all the fit is the same and takes forty times as
    long. Raises UsageError for fewer than six points, and where all have one size or one budget.
    """
    from scipy.optimize import minimize

    n, d, y = (np.log(np.asarray(each, dtype=np.float64)) for each in (n_params, tokens, losses))
    if len(y) < DISTINCT or np.ptp(n) == 0 or np.ptp(d) == 0:
        raise UsageError(
            f"{len(y)} runs do not tell five constants apart; give six or more, of several sizes and several budgets"
        )

    def objective(at: Array) -> tuple[Array, Array]:  # at [5, …]: values […] and slopes [5, …]
        a, b, e, alpha, beta = at[..., None]
        terms = np.stack((a - alpha * n, b - beta * d, e + np.zeros_like(y)))
        top = terms.max(0)
        each = np.exp(terms - top)
        total = each.sum(0)
        error = top + np.log(total) - y
        bounded = np.clip(error, -HUBER, HUBER)
        value, slope = (bounded * (error - 0.5 * bounded)).sum(-1), bounded * each / total
        return value, np.stack((*slope.sum(-1), -(slope[0] * n).sum(-1), -(slope[1] * d).sum(-1)))

    if starts is None:
        every = [(a, b, e, *x) for (a, b), e, x in itertools.product(STARTS, FLOORS, EXPONENTS)]
        starts = [every[at] for at in np.argsort(objective(np.array(every).T)[0])[:NEAREST]]
    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10}
    tried = (
        minimize(objective, start, jac=True, method="L-BFGS-B", bounds=BOUNDS, options=options) for start in starts
    )
    best = min(tried, key=lambda found: found.fun)
    a, b, e, alpha, beta = (float(value) for value in best.x)
    return ScalingLaw(math.exp(e), math.exp(a), math.exp(b), alpha, beta, float(best.fun))


def bootstrap_law(
    n_params: Sequence[float], tokens: Sequence[float], losses: Sequence[float], *, n_resamples: int = 1000
) -> tuple[ScalingLaw, tuple[ScalingLaw, ...]]:
    """(the fit, fits of runs drawn with replacement, each begun where the fit ended).

    Of runs that are drawn, as many must be distinct as `fit_law` asks for; fewer than nine are not drawn from. Raises
    what `fit_law` does.
    """
    law = fit_law(n_params, tokens, losses)
    start = (math.log(law.A), math.log(law.B), math.log(law.E), law.alpha, law.beta)
    rng, given = np.random.default_rng(0), np.array([n_params, tokens, losses], dtype=np.float64)
    found = []
    while len(losses) >= 9 and len(found) < n_resamples:
        drawn = rng.integers(0, len(losses), len(losses))
        each = given[:, drawn]
        if len(set(drawn)) >= DISTINCT and np.ptp(each[0]) and np.ptp(each[1]):
            found.append(fit_law(*each.tolist(), starts=[start]))
    return law, tuple(found)


def read_law(path: str | Path, model: str | None = None) -> ScalingLaw:
    """The law of a model in a study's findings.json, which need not be named where there is one. Raises UsageError."""
    found = plain.read(Path(path), "findings", UsageError)
    laws = found.get("laws") if isinstance(found, dict) else None
    if not isinstance(laws, dict) or not laws:
        raise UsageError(
            f"{path} holds no law; a study of three sizes and three budgets or more writes one to findings.json"
        )
    if model is None and len(laws) > 1:
        raise UsageError(f"{path} holds the laws of {', '.join(laws)}; name one: {path}:{next(iter(laws))}")
    name = next(iter(laws)) if model is None else model
    if name not in laws:
        raise UsageError(f"{path} holds no law of {name!r}{among(name, laws)}")
    try:
        return ScalingLaw(**{key: float(value) for key, value in laws[name].items()})
    except (TypeError, ValueError, AttributeError):
        raise UsageError(f"{path}: the law of {name} is not E, A, B, alpha and beta; run the study again") from None


def interval_of(value: float, draws: Sequence[float]) -> Interval:
    """The value with the middle 95 % of bootstrap draws, where more than nine in ten of them are numbers."""
    known = [each for each in draws if math.isfinite(each)]
    if len(known) <= 0.9 * len(draws):
        return Interval(value)
    low, high = np.percentile(known, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def equal_flops_minimum(sizes: Sequence[float], losses: Sequence[float]) -> tuple[float, float] | None:
    """(size, loss) at the bottom of a parabola in ln size through runs of equal FLOPs; None where there is no bottom within.

    Raises UsageError for fewer than three sizes. Sizes farther than a factor of 4 from the bottom bend it.
    """
    if len(set(sizes)) < 3:
        raise UsageError(f"{len(set(sizes))} sizes are no parabola; give three or more at equal FLOPs")
    x = np.log(np.asarray(sizes, dtype=np.float64))
    c, b, a = np.polynomial.polynomial.polyfit(x, np.asarray(losses, dtype=np.float64), 2)
    if a <= 0 or not x.min() < (at := -b / (2 * a)) < x.max():
        return None
    return math.exp(at), float(c - b * b / (4 * a))


@dataclass(frozen=True)
class EqualFlops:
    """What sizes reach with as many FLOPs, and the best of them."""

    flops: float
    losses: Mapping[int, float]  # by parameters
    best: tuple[float, float] | None  # (parameters, loss); None where an end of the sizes is the lowest


def final_loss(run: RunResult) -> float | None:
    """Nats a token of a run that finished with a number."""
    loss = run.validation_loss
    return loss if run.finished and loss is not None and math.isfinite(loss) else None


def equal_flops(runs: Sequence[RunResult]) -> tuple[EqualFlops, ...]:
    """Of LEVELS from the fewest to the most FLOPs, evenly in logarithms, those that three sizes or more have runs around.

    A size's loss there lies on the straight line of logarithms between its budgets, means over seeds (Hoffmann et al. 2022,
    section 3.2, whose sizes had runs at each level).
    """
    curves: dict[int, dict[float, list[float]]] = {}
    for run in runs:
        if (loss := final_loss(run)) is not None:
            curves.setdefault(run.n_params, {}).setdefault(run.flops, []).append(loss)
    if len(curves) < 3:
        return ()
    means = {n: sorted((flops, float(np.mean(each))) for flops, each in of.items()) for n, of in sorted(curves.items())}
    found = []
    for level in np.geomspace(min(of[0][0] for of in means.values()), max(of[-1][0] for of in means.values()), LEVELS):
        losses = {
            n: math.exp(float(np.interp(math.log(level), *np.log(of).T)))
            for n, of in means.items()
            if of[0][0] * (1 - ROUNDING) <= level <= of[-1][0] * (1 + ROUNDING)
        }
        if len(losses) >= 3:
            found.append(EqualFlops(float(level), losses, equal_flops_minimum(list(losses), list(losses.values()))))
    return tuple(found)


@dataclass(frozen=True)
class Scaling:
    """A model's loss by its size and its text."""

    law: ScalingLaw
    draws: tuple[ScalingLaw, ...]  # fits of runs drawn with replacement
    levels: tuple[EqualFlops, ...]

    def interval(self, of: Callable[[ScalingLaw], float]) -> Interval | None:
        """What is asked of the law, with the middle 95 % of the draws' where nine in ten have it; None where it has none."""

        def asked(law: ScalingLaw) -> float:
            try:
                return of(law)
            except UsageError:  # no optimum
                return math.nan

        value = asked(self.law)
        return None if math.isnan(value) else interval_of(value, [asked(each) for each in self.draws])


def scaling_of(runs: Sequence[RunResult]) -> Scaling:
    """L(N, D) of a model's finished runs. Raises what `fit_law` does."""
    done = [(run.n_params, run.tokens_seen, loss) for run in runs if (loss := final_loss(run)) is not None]
    law, draws = bootstrap_law(*np.array(done, dtype=np.float64).reshape(-1, 3).T.tolist(), n_resamples=300)
    return Scaling(law, draws, equal_flops(runs))


def compute_to(loss: float, flops: Sequence[float], losses: Sequence[float]) -> float | None:
    """The FLOPs at which runs of rising budgets reach a loss, along straight lines of logarithms; None beyond what was run.

    A loss that rises with the budget is held to the least before it.
    """
    x = np.log(np.asarray(flops, dtype=np.float64))
    y = np.minimum.accumulate(np.log(np.asarray(losses, dtype=np.float64)))
    wanted = math.log(loss)
    if len(y) < 2 or not y[-1] <= wanted <= y[0]:
        return None
    return math.exp(float(np.interp(-wanted, -y, x)))


Curves = Mapping[float, Mapping[int, float]]  # losses by FLOPs of a budget, and by seed


def times_as_much(model: Curves, than: Curves, *, n_resamples: int = 2000) -> dict[float, Interval]:
    """How many times a model's FLOPs the other takes to each of three losses that both have reached, none beyond them.

    Intervals are over seeds drawn with replacement, the same ones for both and all budgets. Empty where no loss is shared.
    """
    seeds = sorted(set.intersection(*(set(of) for curves in (model, than) for of in curves.values())))
    if not seeds:
        return {}

    def means(curves: Curves, drawn: Sequence[int]) -> tuple[list[float], list[float]]:
        flops = sorted(curves)
        return flops, [float(np.mean([curves[each][one] for one in drawn])) for each in flops]

    ours, theirs = means(model, seeds), means(than, seeds)
    low, high = max(min(ours[1]), min(theirs[1])), min(ours[1][0], theirs[1][0])  # as `compute_to` reads them
    if low >= high:
        return {}
    targets = [math.exp(math.log(low) + share * math.log(high / low)) for share in (0.25, 0.5, 0.75)]
    rng = np.random.default_rng(0)

    def ratios(drawn: Sequence[int]) -> tuple[float, ...]:
        ours, theirs = means(model, drawn), means(than, drawn)
        pairs = ((compute_to(loss, *theirs), compute_to(loss, *ours)) for loss in targets)
        return tuple(math.nan if a is None or b is None else a / b for a, b in pairs)

    n_draws = n_resamples if len(seeds) > 1 else 0
    draws = [ratios([seeds[i] for i in rng.integers(0, len(seeds), len(seeds))]) for _ in range(n_draws)]
    each = np.array(draws).reshape(n_draws, len(targets)).T.tolist()
    found = zip(targets, ratios(seeds), each, strict=True)
    return {loss: interval_of(value, drawn) for loss, value, drawn in found}
