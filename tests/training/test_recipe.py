"""Recipes: the published numbers, schedules against their formulas, files both ways, refusals."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyformer import recipe as recipes
from anyformer.errors import SpecError
from anyformer.recipe import (
    OLMO_1B_0724,
    RECIPES,
    TRANSFORMER_2017,
    Adam,
    AdamW,
    Constant,
    CosineDecay,
    InverseSqrtDecay,
    LinearDecay,
    Mixture,
    Recipe,
    Stage,
    TextSource,
    Warmup,
)


@pytest.mark.parametrize("d_model", [512, 1024])
def test_2017_has_the_learning_rate_of_its_paper(d_model: int) -> None:
    rate = TRANSFORMER_2017.learning_rates(d_model)
    for step in (1, 2, 100, 3999, 4000, 4001, 16_000, 100_000):
        paper = d_model**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert rate(step) == pytest.approx(paper, rel=1e-12)


def test_2017_has_the_published_optimiser() -> None:
    optimizer = TRANSFORMER_2017.optimizer
    assert isinstance(optimizer, Adam)
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps) == (0.9, 0.98, 1e-9)
    assert TRANSFORMER_2017.label_smoothing == 0.1
    assert (TRANSFORMER_2017.dropout.residual, TRANSFORMER_2017.dropout.embedding) == (0.1, 0.1)
    assert TRANSFORMER_2017.steps == 100_000


def test_olmo_has_the_published_numbers() -> None:
    optimizer = OLMO_1B_0724.optimizer
    assert isinstance(optimizer, AdamW)
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay) == (0.9, 0.95, 1e-5, 0.1)
    assert (OLMO_1B_0724.clip, OLMO_1B_0724.batch_rows, OLMO_1B_0724.seq_len) == (1.0, 512, 4096)
    rate, batch = OLMO_1B_0724.learning_rates(2048), 512 * 4096
    assert rate(1000) == pytest.approx(2e-4, rel=1e-12)
    assert rate(2000) == pytest.approx(4e-4, rel=1e-12)
    end = OLMO_1B_0724.steps - round(50e9 / batch)  # of the cosine
    assert end == pytest.approx(2000e9 / batch, abs=1)
    assert rate(end) == pytest.approx(5e-5, rel=1e-12)
    middle = 2000 + (end - 2000) // 2
    assert rate(middle) == pytest.approx((4e-4 + 5e-5) / 2, rel=1e-5)
    assert rate(end + (OLMO_1B_0724.steps - end) // 2) == pytest.approx(2.5e-5, rel=1e-3)
    assert rate(OLMO_1B_0724.steps) == 0.0


def test_warm_up_and_cosine_by_shares() -> None:
    recipe = Recipe(tokens=100 * 512, batch_tokens=512, schedule=(Warmup(share=0.05), CosineDecay(to=0.1)))
    rate = recipe.learning_rates(64)
    peak = recipe.optimizer.peak(64)
    assert rate(5) == peak
    assert rate(100) == pytest.approx(0.1 * peak)
    t = 40
    assert rate(5 + t) == pytest.approx(peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * t / 95))))


def test_pieces_follow_each_other() -> None:
    pieces = (Warmup(tokens=4 * 256, start=0.5), Constant(steps=6), LinearDecay(to=0.2))
    recipe = Recipe(tokens=20 * 256, batch_tokens=256, schedule=pieces, optimizer=AdamW(lr=2.0))
    rate = recipe.learning_rates(1)
    assert [rate(s) for s in (1, 4, 5, 10, 15, 20, 25)] == pytest.approx([1.25, 2.0, 2.0, 2.0, 1.2, 0.4, 0.4])


@pytest.mark.parametrize(
    ("shares", "steps", "lengths"),
    [
        ((0.5, 0.5), 5, (2, 3)),
        ((0.5, 0.5), 3, (2, 1)),
        ((0.25, 0.25, 0.25, 0.25), 6, (2, 1, 1, 2)),
        ((0.15, 0.35, 0.5), 10, (2, 3, 5)),
        ((0.5, 0.4), 5, (2, 2)),
    ],
)
def test_shares_of_all_fill_the_run(shares: tuple[float, ...], steps: int, lengths: tuple[int, ...]) -> None:
    """Where each rounded by itself does not; less than all leaves steps at the last rate."""
    pieces = tuple(LinearDecay(share=share) for share in shares)
    assert Recipe(tokens=steps * 256, batch_tokens=256, schedule=pieces).learning_rates(1).lengths == lengths


def test_shares_of_more_than_the_run_are_refused() -> None:
    recipe = Recipe(schedule=(Warmup(share=0.3), LinearDecay(share=0.9)))
    with pytest.raises(SpecError, match=r"shares of the schedule add up to 1\.2, more than the whole run"):
        recipe.learning_rates(1)


def test_inverse_square_root_counts_from_the_start_of_the_run() -> None:
    recipe = Recipe(tokens=400 * 256, batch_tokens=256, schedule=(Constant(steps=100), InverseSqrtDecay()))
    rate = recipe.learning_rates(1)
    assert rate(400) / rate(100) == pytest.approx(math.sqrt(100 / 400))


@given(st.integers(1, 300), st.floats(0.01, 0.9), st.floats(0.0, 1.0))
def test_rates_stay_between_zero_and_the_peak(steps: int, share: float, to: float) -> None:
    recipe = Recipe(tokens=steps * 256, batch_tokens=256, schedule=(Warmup(share=share), CosineDecay(to=to)))
    if round(share * steps) >= steps:
        return
    rate = recipe.learning_rates(8)
    assert all(0 <= rate(step) <= rate.peak * (1 + 1e-12) for step in range(1, steps + 1))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_files_go_both_ways(name: str, form: str) -> None:
    text = recipes.dumps(RECIPES[name], form)  # type: ignore[arg-type]
    assert recipes.loads(text) == RECIPES[name]


def test_numbers_of_numpy_are_written_too() -> None:
    """As the rates of np.logspace, which are floats, and not YAML's."""
    smoothed = Recipe(label_smoothing=np.float64(0.1))
    assert recipes.dumps(smoothed) == recipes.dumps(Recipe(label_smoothing=0.1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("recipe: 1\ntokes: 5", "no field 'tokes' (did you mean 'tokens'?)"),
        ("recipe: 1\noptimizer: {kind: AdmaW}", "did you mean 'AdamW'?"),
        ("recipe: 1\nschedule: [{kind: Warmup, steps: 3, share: 0.5}]", "give one of them"),
        ("recipe: 1\nschedule: [{kind: Warmup, steps: 0}]", "Warmup.steps = 0 must be at least 1, or null"),
        ("recipe: 1\nbatch_tokens: 300", "must be a multiple of seq_len = 256, such as 256"),
        ("recipe: 1\nprecision: fp8", "none of 'float32', 'bf16'"),
        ("recipe: 1\nclip: 0.0", "must be above 0"),
        ("recipe: 1\ndropout: {residual: 1.0}", "below 1"),
        ("recipe: 1\noptimizer: {kind: AdamW, lr: -1e-3}", "AdamW.lr = -0.001 must be above 0"),
        ("recipe: 2", "version 2"),
        ("tokens: 5", "no first key 'recipe: 1'"),
        ("recipe: [", "neither JSON nor YAML"),
    ],
)
def test_a_wrong_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        recipes.loads(text, "my.yaml")
    assert says in str(caught.value)
    assert "my.yaml" in str(caught.value)


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        SpecError, match="leaves no step for InverseSqrtDecay: the other pieces take 4000, the run has 100"
    ):
        TRANSFORMER_2017.but(tokens=100 * 25_000).learning_rates(512)
    with pytest.raises(SpecError, match="only one can take the rest"):
        Recipe(schedule=(CosineDecay(), LinearDecay())).learning_rates(1)
    mixture = Mixture(texts=(TextSource(text="a"),), stages=(Stage(), Stage()))
    with pytest.raises(SpecError, match="two pieces of the mixture have no length"):
        mixture.by_step(10, 256)
    with pytest.raises(SpecError, match=r"did you mean 'small'"):
        recipes.named("smal")


def test_recipes_need_no_torch() -> None:
    code = "import anyformer.recipe, sys; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(recipes.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
