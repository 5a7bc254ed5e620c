"""Scaling fits find laws that are known, on data made by them, and agree with published constants."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from anyformer.costs.scaling_law import BESIROGLU, ScalingLaw
from anyformer.errors import UsageError
from anyformer.study.findings import as_markdown, find
from anyformer.study.results import DocumentLoss, RunResult
from anyformer.study.scaling import (
    EXPONENTS,
    FLOORS,
    STARTS,
    Scaling,
    bootstrap_law,
    compute_to,
    equal_flops,
    equal_flops_minimum,
    fit_law,
    interval_of,
    read_law,
    scaling_of,
    times_as_much,
)
from anyformer.study.specification import read_study

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


def test_draws_that_tell_no_exponent_are_still_laws() -> None:
    """The runs of `studies/13-scaling.yaml`: of some of those drawn, L-BFGS went to an A of e^900."""
    n, d = zip(*itertools.product((751e3, 1.25e6, 2.19e6), (250e3, 500e3, 1e6, 2e6)), strict=True)
    losses = (4.9585, 4.4316, 3.9635, 3.6643, 4.8863, 4.3537, 3.8921, 3.5883, 4.8310, 4.3616, 3.8344, 3.5121)
    law, draws = bootstrap_law(n, d, losses, n_resamples=100)
    assert 0.2 < law.alpha < 0.4
    assert max(each.A for each in draws) > 1e9, "some must be of the kind"
    assert all(math.isfinite(value) for each in draws for value in dataclasses.astuple(each))


@pytest.mark.slow
@pytest.mark.parametrize("few", [False, True])
def test_the_nearest_starts_find_what_all_do(few: bool) -> None:
    every = [(a, b, e, *x) for (a, b), e, x in itertools.product(STARTS, FLOORS, EXPONENTS)]
    n, d, y = (each[::3] if few else each for each in grid(CHINCHILLA, noise=0.005, seed=1))
    assert fit_law(n, d, y).objective == pytest.approx(fit_law(n, d, y, starts=every).objective, rel=1e-9)


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


def runs_of(law: ScalingLaw, sizes: list[int], budgets: list[int], noise: float = 0.0) -> list[RunResult]:
    """One run of each size and budget, of 6 N FLOPs a token, with losses by a law."""
    rng = np.random.default_rng(3)
    return [
        RunResult(
            architecture="a", seed=1, learning_rate=1e-3, n_params=n, n_params_embedding=1, flops_per_token=6.0 * n,
            tokens_seen=d, tokens_per_second=1.0, seconds=1.0,
            documents=(DocumentLoss(1000 * law.loss(n, d) * math.exp(noise * rng.normal()), 1000, 4000),),
        )
        for n in sizes
        for d in budgets
    ]  # fmt: skip


TWOFOLD = [1_000_000 * 2**k for k in range(5)]
KNOWN = ScalingLaw(E=1.7, A=400.0, B=400.0, alpha=0.3, beta=0.3)  # the best size has a token a parameter


def test_sizes_of_equal_flops_are_those_of_a_known_law() -> None:
    levels = equal_flops(runs_of(KNOWN, TWOFOLD, TWOFOLD))
    assert len(levels) == 5  # of nine: below and above fewer than three sizes reach them
    for level in levels:
        for n, loss in level.losses.items():
            truth = KNOWN.loss(n, level.flops / 6 / n)
            assert loss == pytest.approx(truth, rel=2e-3)  # between budgets a straight line
    middle = levels[2]
    assert list(middle.losses) == TWOFOLD
    assert middle.best is not None
    assert middle.best[0] == pytest.approx(KNOWN.optimum(middle.flops)[0], rel=0.05)
    assert equal_flops(runs_of(KNOWN, TWOFOLD[:2], TWOFOLD)) == ()


def test_a_run_that_failed_is_at_no_level() -> None:
    runs = runs_of(KNOWN, TWOFOLD[:3], TWOFOLD)
    known = equal_flops(runs)
    assert known
    assert equal_flops([*runs, dataclasses.replace(runs[0], failure="diverged")]) == known
    assert (
        equal_flops([dataclasses.replace(run, failure="x") if run.n_params == TWOFOLD[0] else run for run in runs])
        == ()
    )


def test_what_a_law_says_has_an_interval_that_holds_it() -> None:
    found = scaling_of(runs_of(KNOWN, TWOFOLD, TWOFOLD, noise=0.002))
    for asked, truth in (
        (lambda law: law.exponent, KNOWN.exponent),
        (lambda law: law.loss(4e6, 4e6), KNOWN.loss(4e6, 4e6)),
    ):
        said = found.interval(asked)
        assert said is not None
        assert said.low is not None
        assert said.high is not None
        assert said.low < truth < said.high
    assert len(found.draws) == 300


def test_few_runs_are_fitted_and_not_drawn_from() -> None:
    law, draws = bootstrap_law(*(each[::6] for each in grid(CHINCHILLA)))  # eight
    assert draws == ()
    said = Scaling(law, draws, ()).interval(lambda each: each.alpha)
    assert said is not None
    assert (said.value, said.low) == (law.alpha, None)
    assert Scaling(ScalingLaw(E=2, A=1, B=1, alpha=0.3, beta=-0.1), (), ()).interval(lambda each: each.exponent) is None


def test_a_study_of_sizes_and_budgets_says_what_is_best(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "{study: 1, title: T, data: stdlib, vocab_size: 256, sizes: [1000000, 2000000, 4000000], rates: [0.001], seeds: 1, "
        "tokens: [1000000, 2000000, 4000000, 8000000], recipe: {batch_tokens: 32, seq_len: 32}, "
        "models: [{name: a, architecture: llama2}], claims: []}"
    )
    spec = read_study(file)
    runs = {
        ("a", run.n_params, run.tokens_seen): [run] for run in runs_of(KNOWN, TWOFOLD[:3], TWOFOLD[:4], noise=0.001)
    }
    found = find(spec, "", runs, ())
    page = as_markdown(found, "command")
    assert "| model | E | A | B | α | β | a | D/N |" in page
    assert "tokens a parameter at 192 TFLOPs" in page  # 6 × 4M × 8M
    (row,) = (line for line in page.splitlines() if line.startswith("| a | ") and line.count(" to ") == 7)
    assert row.count("(") == 7
    told = found.as_json()
    assert set(told["laws"]["a"]) == {"E", "A", "B", "alpha", "beta", "objective"}
    levels = told["equal_flops"]["a"]
    assert page.count("| a | ") - page.count("| a | 1.00M | 1.00M | ") > len(levels) > 0
    assert json.loads(json.dumps(told))["equal_flops"]["a"][0]["losses"].keys() == {str(n) for n in TWOFOLD[:3]}


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
    rising = {
        1e12: {1: 5.0, 2: 5.0},
        2e12: {1: 5.2, 2: 5.2},
    }  # the larger budget made it worse: nothing above 5 is reached
    falling = {1e12: {1: 5.3, 2: 5.3}, 2e12: {1: 4.9, 2: 4.9}}
    assert times_as_much(falling, rising) == {}


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
