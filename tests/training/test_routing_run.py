"""A whole run of a mixture: it learns, goes on exactly where it crashed, and says what its experts got."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch

from anyformer import layers
from anyformer.recipe import Constant, DropoutSpec, LoadBalance, Recipe, RouterTraining, RouterZLoss, SequenceBalance
from anyformer.training.checkpoint.metrics import read_metrics
from anyformer.training.run import RunOptions, train
from anyformer.training.run.progress import PlainLines
from anyformer.training.step.routing import routers_of
from tests.training.crashing import hexadecimal, resumed
from tests.training.test_routing import mixture
from tests.training.texts import text_data

ROUTING = RouterTraining(
    losses=(LoadBalance(weight=0.01), SequenceBalance(weight=1e-4), RouterZLoss(weight=1e-3)),
    correction_speed=1e-3,
    jitter=0.02,
)
RECIPE = Recipe(
    tokens=64 * 14,
    batch_tokens=64,
    seq_len=16,
    dropout=DropoutSpec(residual=0.1, activation=0.1),
    schedule=(Constant(),),
    router=ROUTING,
)
HOW = RunOptions(device=torch.device("cpu"), save_every=5, validations=2)
SPEC = mixture("sigmoid", layers.CapacityFactor(factor=1.0))


def test_it_goes_on_bit_for_bit_and_says_its_load(tmp_path: Path) -> None:
    stream = io.StringIO()
    whole = train(SPEC, RECIPE, text_data(), options=HOW, watcher=PlainLines(stream))
    out = tmp_path / "run"
    again = resumed(12, SPEC, RECIPE, text_data(), out=out, options=HOW)
    assert hexadecimal(again) == hexadecimal(whole)
    for mine, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    for router in routers_of(again.model):
        assert router.correction is not None
        moved = (router.correction / 1e-3).round()
        torch.testing.assert_close(router.correction.detach(), moved * 1e-3)
        assert moved.abs().sum() > 6, "fourteen steps must have moved it"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == len(read_metrics(out).steps) == 14
    for line in steps:
        assert line["router_loss"] > 0
        assert 1 <= line["expert_load_max"] <= 6
        assert 0.5 < line["expert_load_entropy"] <= 1
        assert 0 < line["expert_dropped"] < 0.5
    assert "busiest expert 1." in stream.getvalue()
    assert "% dropped" in stream.getvalue()


def test_it_learns() -> None:
    recipe = RECIPE.but(
        tokens=64 * 120, router=RouterTraining(losses=(LoadBalance(weight=0.01),)), dropout=DropoutSpec()
    )
    result = train(mixture(), recipe, text_data(), options=HOW)
    assert result.evaluation is not None
    assert result.evaluation.loss < result.steps[0].loss - 0.5
