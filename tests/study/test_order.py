"""Agreement of orders: Spearman's ρ by hand, chance by counting all orders, seeds that move it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from anyformer.study.order import agreement
from anyformer.study.ruling import judged
from anyformer.study.specification import ModelEntry, PublishedLoss, SameOrder, StudySpec
from tests.study.test_study import reported

PUBLISHED = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}


def spearman(order: tuple[int, ...]) -> float:
    """1 - 6 Σ d² / (n (n² - 1)), of ranks without ties."""
    n = len(order)
    return 1 - 6 * sum((i - rank) ** 2 for i, rank in enumerate(order)) / (n * (n**2 - 1))


def test_by_hand_and_by_all_orders() -> None:
    order = (1, 0, 2, 4, 3)
    losses = {name: {1: 3.0 + rank, 2: 3.1 + rank} for name, rank in zip(PUBLISHED, order, strict=True)}
    found = agreement(losses, PUBLISHED)
    assert found is not None
    assert found.rho.value == pytest.approx(spearman(order)) == pytest.approx(0.8)
    assert (found.rho.low, found.rho.high) == (pytest.approx(0.8), pytest.approx(0.8))  # seeds agree
    every = [spearman(each) for each in itertools.permutations(range(5))]
    assert found.p_value == pytest.approx(sum(rho >= 0.8 - 1e-9 for rho in every) / len(every))
    assert found.n == 5


def test_too_few_share_a_seed() -> None:
    assert agreement({"a": {1: 3.0}, "b": {1: 3.0}, "c": {1: 3.0}, "d": {}}, PUBLISHED) is None
    assert agreement({name: {i: 3.0} for i, name in enumerate(PUBLISHED)}, PUBLISHED) is None


def test_what_is_all_one_has_no_order() -> None:
    ours = {name: {1: float(i), 2: float(i)} for i, name in enumerate(PUBLISHED)}
    assert agreement(ours, dict.fromkeys(PUBLISHED, 2.0)) is None
    assert agreement({name: {1: 3.0} for name in PUBLISHED}, PUBLISHED) is None
    assert agreement(ours, PUBLISHED) is not None


def study(extremes: tuple[str, ...], *names: str) -> StudySpec:
    published = tuple(PublishedLoss(model=name, loss=1.0 + i) for i, name in enumerate(names))
    models = tuple(ModelEntry(name=name, architecture="gpt2") for name in names)
    return StudySpec(
        title="t", models=models, claims=(SameOrder(says="x", published=published, extremes=extremes),), seeds=2
    )


@pytest.mark.parametrize(
    ("ranks", "extremes", "ruling"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), (), "supported"),
        ((7, 6, 5, 4, 3, 2, 1, 0), (), "contradicted"),
        ((3, 0, 5, 2, 7, 1, 4, 6), (), "undecided"),
        # The extremes alone agree: ρ of all eight is .76, of the inner six nothing.
        ((0, 4, 2, 5, 1, 3, 6, 7), (), "supported"),
        ((0, 4, 2, 5, 1, 3, 6, 7), ("a", "g", "h"), "undecided"),
    ],
)
def test_verdicts_with_and_without_extremes(ranks: tuple[int, ...], extremes: tuple[str, ...], ruling: str) -> None:
    names = "abcdefgh"
    spec = study(extremes, *names)
    runs: Any = reported(spec, lambda name, seed: 3.0 + ranks[names.index(name)] + seed / 100)
    (found,) = judged(spec, runs)
    assert found.ruling == ruling
    assert ("without extremes" in found.said) == bool(extremes)
