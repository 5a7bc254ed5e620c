"""Scaling fits find laws that are known, on data made by them, and agree with published constants."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from anyformer.costs.scaling_law import BESIROGLU, ScalingLaw
from anyformer.errors import UsageError
from anyformer.study.scaling import (
    bootstrap_law,
    compute_to,
    equal_flops_minimum,
    fit_law,
    interval_of,
    read_law,
    times_as_much,
)

CHINCHILLA = BESIROGLU
NEAR = [(5.0, 8.0, 0.5, 0.5, 0.5), (5.0, 5.0, 0.0, 0.3, 0.3), (10.0, 10.0, 1.0, 0.5, 0.5)]


def grid(law: ScalingLaw, noise: float = 0.0, seed: int = 0) -> tuple[list[float], list[float], list[float]]:
    """Five budgets of 1e18 to 1e20 FLOPs, nine sizes each around the optimum."""
    rng, rows = np.random.default_rng(seed), []
    for flops in np.geomspace(1e18, 1e20, 5):
        best, _ = law.optimum(flops)
        for n in best * np.geomspace(0.1, 10, 9):
            d = flops / 6 / n
            rows.append((float(n), float(d), law.loss(n, d) * math.exp(noise * rng.normal())))
    n, d, y = zip(*rows, strict=True)
    return list(n), list(d), list(y)


def test_a_known_law_is_found() -> None:
    found = fit_law(*grid(CHINCHILLA), starts=NEAR)
    for name in ("E", "A", "B", "alpha", "beta"):
        assert getattr(found, name) == pytest.approx(getattr(CHINCHILLA, name), rel=0.02)
    assert found.objective < 1e-9


def test_the_published_optimum() -> None:
    """At Chinchilla's 5.76e23 FLOPs: about 18 tokens a parameter by the re-fit, 59 by Hoffmann's own unrounded constants."""
    n, d = ScalingLaw(E=1.81722, A=477.83, B=2143.4, alpha=0.347311, beta=0.367172).optimum(5.76e23)
    assert (n, d / n) == (pytest.approx(7.23e10, rel=0.02), pytest.approx(18.4, rel=0.03))  # of rounded constants
    hoffmann = ScalingLaw(math.exp(0.5267228), math.exp(6.0073404), math.exp(6.0179186), 0.33917084, 0.2849083)
    n, d = hoffmann.optimum(5.76e23)
    assert (n, d / n) == (pytest.approx(4.03e10, rel=0.01), pytest.approx(59.1, rel=0.01))


def test_with_noise_curves_are_near_though_constants_are_not() -> None:
    truth = ScalingLaw(E=1.8, A=480, B=2100, alpha=0.35, beta=0.37)
    n, d, y = grid(truth, noise=0.01)
    found = fit_law(n, d, y, starts=NEAR)
    errors = [found.loss(a, b) / truth.loss(a, b) - 1 for a, b in zip(n, d, strict=True)]
    assert max(map(abs, errors)) < 0.01


@pytest.mark.slow
def test_the_default_starts_find_the_best_optimum() -> None:
    n, d, y = grid(CHINCHILLA, noise=0.005, seed=1)
    assert fit_law(n, d, y).objective <= fit_law(n, d, y, starts=NEAR).objective * 1.001


@pytest.mark.slow
def test_resampled_fits_lie_around_the_fit() -> None:
    law, draws = bootstrap_law(*(each[::3] for each in grid(CHINCHILLA, noise=0.002)), n_resamples=30)
    found = interval_of(law.loss(1e9, 1e9), [each.loss(1e9, 1e9) for each in draws])
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


@pytest.mark.slow
def test_bootstrap_intervals_cover_the_loss_within_the_range() -> None:
    held = []
    for seed in range(20):
        n, d, y = grid(CHINCHILLA, noise=0.01, seed=seed)
        start = [(math.log(482), math.log(2085), math.log(1.8), 0.35, 0.37)]
        law = fit_law(n, d, y, starts=start)
        rng, draws = np.random.default_rng(seed), []
        for _ in range(60):
            at = rng.integers(0, len(n), len(n))
            drawn = fit_law(*(np.array(each)[at].tolist() for each in (n, d, y)), starts=start)
            draws.append(drawn.loss(n[22], d[22]))
        found = interval_of(law.loss(n[22], d[22]), draws)
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= CHINCHILLA.loss(n[22], d[22]) <= found.high)
    assert np.mean(held) >= 0.8


def test_a_parabola_finds_the_size_of_equal_flops() -> None:
    best, _ = CHINCHILLA.optimum(1e19)
    sizes = [best * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    found = equal_flops_minimum(sizes, [CHINCHILLA.loss(n, 1e19 / 6 / n) for n in sizes])
    assert found is not None
    assert found[0] == pytest.approx(best, rel=0.05)
    assert equal_flops_minimum([1, 2, 3], [3.0, 2.0, 1.0]) is None
    with pytest.raises(UsageError, match="2 sizes are no parabola; give three or more"):
        equal_flops_minimum([1, 2], [3, 2])


def test_compute_to_a_loss_by_hand() -> None:
    """Halfway in ln loss between 4 and 1 is 2: halfway in ln FLOPs between 1 and 100."""
    assert compute_to(2.0, [1, 100], [4.0, 1.0]) == pytest.approx(10)
    assert compute_to(0.9, [1, 100], [4.0, 1.0]) is None
    assert compute_to(5.0, [1, 100], [4.0, 1.0]) is None
    assert compute_to(2.0, [1, 100, 200], [4.0, 1.0, 1.5]) == pytest.approx(10)


def test_times_as_much_compute() -> None:
    """The other's losses are the model's at a third of the FLOPs."""
    budgets = (1e12, 2e12, 4e12, 8e12)
    rng = np.random.default_rng(0)

    def curve(worth: float, noise: float) -> dict[float, dict[int, float]]:
        return {
            c: {s: 5 * (c * worth / 1e12) ** -0.08 * math.exp(noise * rng.normal()) for s in range(5)} for c in budgets
        }

    exact = times_as_much(curve(1.0, 0.0), curve(1 / 3, 0.0))
    assert [each.value for each in exact.values()] == pytest.approx([3.0] * 3)
    noisy = times_as_much(curve(1.0, 0.002), curve(1 / 3, 0.002), n_resamples=200)
    assert all(each.low is not None and each.high is not None and each.low < 3 < each.high for each in noisy.values())
    assert times_as_much(curve(1e6, 0.0), curve(1.0, 0.0)) == {}


def test_too_little_is_refused() -> None:
    with pytest.raises(UsageError, match="4 runs do not tell five constants apart; give six or more"):
        fit_law([1e6] * 4, [1e6] * 4, [3.0] * 4)


FOUND = {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37}


def findings(place: Path, laws: object) -> str:
    file = place / "findings.json"
    file.write_text(json.dumps({"version": 1, "laws": laws}))
    return str(file)


def test_the_law_of_a_study_is_read(tmp_path: Path) -> None:
    file = findings(tmp_path, {"llama2": FOUND, "2017": FOUND | {"E": 1.9}})
    assert read_law(file, "2017") == ScalingLaw(E=1.9, A=480, B=2100, alpha=0.35, beta=0.37)
    assert read_law(findings(tmp_path, {"llama2": FOUND})) == ScalingLaw(E=1.8, A=480, B=2100, alpha=0.35, beta=0.37)


@pytest.mark.parametrize(
    ("laws", "model", "says"),
    [
        ({}, None, "holds no law; a study of three sizes"),
        ({"a": FOUND, "b": FOUND}, None, "holds the laws of a, b; name one"),
        ({"llama2": FOUND}, "lama2", "holds no law of 'lama2'.*did you mean 'llama2'"),
        ({"a": FOUND | {"gamma": 1}}, "a", "is not E, A, B, alpha and beta"),
        ({"a": 3}, None, "is not E, A, B, alpha and beta"),
        ({"a": FOUND | {"A": None}}, None, "is not E, A, B, alpha and beta"),
    ],
)
def test_what_is_no_law_is_refused(tmp_path: Path, laws: object, model: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_law(findings(tmp_path, laws), model)


def test_a_law_that_falls_nowhere_has_no_optimum() -> None:
    with pytest.raises(UsageError, match="has no optimum; A, B, alpha and beta must be above 0"):
        ScalingLaw(E=2, A=1, B=1, alpha=0.3, beta=-0.1).optimal_tokens(1e6)
