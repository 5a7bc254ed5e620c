"""Whether losses come in the order of published ones: Spearman's ρ, its chance, and how seeds move it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyformer.study.paired import Interval
from anyformer.study.statistics import N_RESAMPLES


@dataclass(frozen=True)
class Agreement:
    """The rank correlation of mean losses with published ones."""

    rho: Interval  # with 95 % over seeds drawn with replacement, the same ones for all models
    n: int  # models
    p_value: float  # the share of orders drawn by chance that agree as well; one-sided


def agreement(losses: Mapping[str, Mapping[int, float]], published: Mapping[str, float]) -> Agreement | None:
    """How losses by model and seed agree with published ones by model; None for fewer than four models with a common seed, and
    where all of either's are equal, which have no order.
    """
    from scipy.stats import permutation_test, rankdata

    names = [name for name in published if losses.get(name)]
    seeds = sorted(set.intersection(*(set(losses[name]) for name in names))) if names else []
    if len(names) < 4 or not seeds:
        return None
    theirs = rankdata([published[name] for name in names])
    ours = np.array([[losses[name][one] for one in seeds] for name in names])

    def rho(ranks: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:  # [..., model]; NaN for equal ranks
        mine, of_them = ranks - ranks.mean(axis, keepdims=True), theirs - theirs.mean()
        with np.errstate(invalid="ignore"):
            return mine @ of_them / (np.linalg.norm(mine, axis=axis) * np.linalg.norm(of_them))

    mean = ours.mean(1)
    if not np.ptp(mean) or not np.ptp(theirs):
        return None
    ranks = rankdata(mean)
    value = float(rho(ranks))
    test = permutation_test(
        (ranks,), rho, permutation_type="pairings", alternative="greater", n_resamples=N_RESAMPLES, vectorized=True,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    if len(seeds) == 1:
        return Agreement(Interval(value), len(names), float(test.pvalue))
    drawn = np.random.default_rng(0).integers(0, len(seeds), (N_RESAMPLES // 10, len(seeds)))
    low, high = np.nanpercentile(rho(rankdata(ours[:, drawn].mean(2).T, axis=-1)), [2.5, 97.5])
    return Agreement(Interval(value, float(low), float(high)), len(names), float(test.pvalue))
