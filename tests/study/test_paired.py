"""Paired statistics: power as published tables have it, the pipeline's errors at their nominal rates, planted effects found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from anyformer.study.paired import (
    Difference,
    Losses,
    Spread,
    corrected,
    difference,
    least_detectable,
    least_margin,
    lower,
    paired,
    power,
    same,
    spread_of,
    spread_of_pairs,
)


def differences(losses: Losses, pairs: list[tuple[str, str]]) -> list[Difference]:
    """Of each pair (model, than), by the models' one spread."""
    spread = spread_of(losses)
    return [difference(paired(losses, *pair), spread) for pair in pairs]


def test_one_variant_by_its_own_deviation_is_the_paired_t_test() -> None:
    a, b = np.random.default_rng(0).normal(3, 0.1, (2, 6))
    (found,) = differences({"a": dict(enumerate(a)), "b": dict(enumerate(b))}, [("a", "b")])
    expected = stats.ttest_rel(a, b)
    assert found.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high))
    assert found.effect == pytest.approx((a - b).mean() / (a - b).std(ddof=1))


def test_the_deviation_by_hand() -> None:
    """What means of rows and columns leave is 0 in the first row, ±.2 in the second, ∓.2 in the third."""
    three = {"a": {1: 1.0, 2: 2.0}, "b": {1: 1.5, 2: 2.1}, "c": {1: 0.8, 2: 2.2}}
    found = spread_of(three)
    assert (found.sd, found.df) == (pytest.approx(math.sqrt(2 * 4 * 0.2**2 / 2)), 2)
    more = spread_of(three | {"d": {2: 7.0}, "e": {3: 9.0}, "f": {}})  # who shares no two seeds tells nothing
    assert (more.sd, more.df) == (pytest.approx(found.sd), 2)
    assert spread_of_pairs([1, 1, 4]) == Spread(math.sqrt(3), 2)
    alone = difference([0.3], spread_of({"a": {1: 1.3}, "b": {1: 1.0}}))
    assert (alone.p_value, alone.interval.low, alone.effect) == (1.0, None, None)
    assert not spread_of({}).df


# Of facts that were worked out apart from this code: (pairs, degrees of freedom, tests) → sd of the pairs.
@pytest.mark.parametrize(
    ("n", "df", "n_tests", "sd"),
    [
        *((3, 2, 1, 3.26), (5, 4, 1, 1.68), (8, 7, 1, 1.16), (10, 9, 1, 1.00), (3, 2, 12, 11.3), (5, 4, 12, 3.31)),
        *((3, 24, 1, 1.69), (5, 24, 1, 1.31), (8, 24, 1, 1.03), (3, 24, 8, 2.24), (5, 24, 8, 1.74)),
    ],
)
def test_the_least_detectable_difference(n: int, df: int, n_tests: int, sd: float) -> None:
    assert least_detectable(n, df, n_tests) == pytest.approx(sd, rel=0.01)


@pytest.mark.parametrize(("n", "df", "sd"), [(3, 2, 2.66), (5, 4, 1.60), (8, 7, 1.15), (3, 24, 1.74), (5, 24, 1.35)])
def test_the_least_margin_of_equivalence(n: int, df: int, sd: float) -> None:
    assert least_margin(n, df) == pytest.approx(sd, rel=0.01)


@pytest.mark.parametrize(("n", "df"), [(300, 3289), (1000, 10_989)])
def test_of_many_seeds_it_is_the_normal_distribution_s(n: int, df: int) -> None:
    """Of a known deviation: P(|x| < margin - z(95 %) / √n) = 80 %, so margin √n = z(95 %) + z(90 %)."""
    assert least_margin(n, df) * math.sqrt(n) == pytest.approx(1.6449 + 1.2816, rel=2e-3)


def studies(n_studies: int, effects: tuple[float, ...], n: int, draw: Any, seed: int) -> list[Any]:
    """Simulated studies: variants against one base, paired by seed, whose differences share the base's noise."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_studies):
        base = draw(rng, n)
        losses = {"base": dict(enumerate(base))}
        losses |= {str(i): dict(enumerate(effect + draw(rng, n))) for i, effect in enumerate(effects)}
        found.append(differences(losses, [(str(i), "base") for i in range(len(effects))]))
    return found


def normal(rng: Any, n: int) -> Any:
    return rng.normal(0, 0.006 / math.sqrt(2), n)


def heavy(rng: Any, n: int) -> Any:
    return rng.standard_t(4, n) * 0.003


def test_what_follows_from_other_differences_counts_once() -> None:
    """Three models of two seeds: two degrees of freedom, whatever is compared with whatever."""
    losses = {"a": {1: 1.0, 2: 2.0}, "b": {1: 1.5, 2: 2.1}, "c": {1: 0.8, 2: 2.2}}
    assert spread_of(losses).df == 2
    forth, back = differences(losses, [("b", "c"), ("c", "b")])
    assert (forth.value, forth.p_value) == (pytest.approx(-back.value), pytest.approx(back.p_value))
    assert forth.value == pytest.approx(0.3)


def any_claim(found: Any) -> bool:
    return min(corrected(found)) < 0.05


@pytest.mark.parametrize(
    ("n_studies", "draw", "n", "most"),
    [
        (2000, normal, 3, 0.06),
        pytest.param(10_000, normal, 5, 0.055, marks=pytest.mark.slow),
        pytest.param(10_000, heavy, 3, 0.055, marks=pytest.mark.slow),
    ],
)
def test_a_against_a_claims_at_the_nominal_rate(n_studies: int, draw: Any, n: int, most: float) -> None:
    """Of one comparison .05; of eight together no more, though all share the base (Holm)."""
    one = np.mean([any_claim(each) for each in studies(n_studies, (0.0,), n, draw, 1)])
    assert one == pytest.approx(0.05, abs=0.015 if draw is normal else 0.03)
    family = np.mean([any_claim(each) for each in studies(n_studies // 4, (0.0,) * 8, n, draw, 2)])
    assert family <= most + 2 * math.sqrt(0.05 * 0.95 / (n_studies // 4))


@pytest.mark.parametrize(("n_variants", "n"), [(8, 2), (16, 3)])
def test_what_shares_a_base_is_no_more_often_wrong(n_variants: int, n: int) -> None:
    """Each test of many by itself, though all differences have the base's noise in them; so its interval."""
    found = [one for each in studies(600, (0.0,) * n_variants, n, normal, 7) for one in each]
    assert np.mean([one.p_value < 0.05 for one in found]) == pytest.approx(0.05, abs=0.012)
    assert np.mean([one.interval.low <= 0 <= one.interval.high for one in found]) == pytest.approx(0.95, abs=0.012)


def test_a_planted_difference_is_found_as_often_as_foreseen() -> None:
    effect = least_detectable(5, 4) * 0.006
    found = [each[0].p_value < 0.05 for each in studies(600, (effect,), 5, normal, 3)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)
    assert power(0.0, 5, 4) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("n_studies", "draw", "n"),
    [
        (600, normal, 3),
        pytest.param(6000, normal, 5, marks=pytest.mark.slow),
        pytest.param(6000, heavy, 3, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover_the_truth(n_studies: int, draw: Any, n: int) -> None:
    effects = (0.0, 0.01, -0.02)
    held = [
        [one.interval.low <= effect <= one.interval.high for one, effect in zip(each, effects, strict=True)]
        for each in studies(n_studies, effects, n, draw, 4)
    ]
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)


def test_equal_models_are_shown_to_be_equal_no_more_than_the_margin_allows() -> None:
    """At a true difference of δ, the edge, equivalence is wrongly shown 5 % of the time."""
    edge = [same(each[0], 0.01) == "supported" for each in studies(800, (0.01,), 8, normal, 5)]
    assert np.mean(edge) < 0.07
    equal = [same(each[0], 0.01) == "supported" for each in studies(300, (0.0,), 8, normal, 6)]
    assert np.mean(equal) > 0.85


@pytest.mark.parametrize(
    ("pairs", "lower_is", "same_is"),
    [
        ([-0.05, -0.051, -0.049], "supported", "contradicted"),
        ([0.05, 0.051, 0.049], "contradicted", "contradicted"),
        ([0.0001, -0.0001, 0.0002], "contradicted", "supported"),
        ([-0.04, 0.05, -0.06], "undecided", "undecided"),
        ([-0.005, -0.0051, -0.0049], "supported", "supported"),
    ],
)
def test_rulings(pairs: list[float], lower_is: str, same_is: str) -> None:
    found = difference(pairs, spread_of_pairs(pairs))
    assert (lower(found, found.p_value, 0.01), same(found, 0.01)) == (lower_is, same_is)
