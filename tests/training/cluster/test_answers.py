"""Answers that processes share out: losses of each step are those of one process, also of what was said before the first."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from anyformer.recipe import DPO, ORPO, SFT, ObjectiveSpec, RewardModel
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.sharding import shard
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.objective import with_head_for
from anyformer.training.run.evaluation import evaluate
from tests.training.cluster.processes import Processes
from tests.training.test_answers import begun, fitting, recipe
from tests.training.test_objectives import CPU, sharpened


def losses(world: World | None, objective: ObjectiveSpec, mesh: str) -> list[float]:
    """Of a few steps, and of what was held out behind them."""
    world = ALONE if world is None else replace(world, mesh=parse(mesh, world.size))
    model: Any = sharpened(with_head_for(fitting(), objective))
    if world.sharded:
        model = shard(model, CPU, world)
    given = recipe(objective, batch_tokens=320)  # DPO looks at 4 and 1 batches first, which two processes cannot halve
    trainer, data = begun(model, given, world)
    feed = data.feed(given)
    found = [trainer.step(number, next(feed)).loss for number in range(1, 5)]
    return [*found, evaluate(model, trainer.objective, data.validation(given), world=world).loss]


@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2", "tp=2"])
@pytest.mark.parametrize("objective", [SFT(), DPO(), ORPO(), RewardModel()], ids=lambda each: each.kind)
def test_two_processes_are_one(two: Processes, objective: ObjectiveSpec, mesh: str) -> None:
    alone = losses(None, objective, "")
    for found in two(losses, objective, mesh):
        assert all(math.isclose(mine, one, rel_tol=2e-5) for mine, one in zip(found, alone, strict=True)), (
            found,
            alone,
        )
    assert len(set(alone)) == 5
