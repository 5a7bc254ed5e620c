"""Answers that processes write, each to its own prompts: the steps are those of one; who has some of the weights writes none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from anyformer.errors import UsageError
from anyformer.recipe import RLOO
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run.evaluation import evaluate
from anyformer.training.step import Trainer
from tests.training.cluster.processes import Processes
from tests.training.test_rewarded import data, recipe, tokenizer, way, writer


def losses(world: World | None, mesh: str) -> list[float]:
    """Of a few steps, the entropy of what was drawn, and of what was held out behind them."""
    world = ALONE if world is None else replace(world, mesh=parse(mesh, world.size))
    model, given = writer(), recipe(way(RLOO))
    trainer = Trainer(model, given, objective_of(given.objective, model.spec, tokenizer()), world=world)
    feed, found = data().feed(given), list[float]()
    for number in range(1, 5):
        result = trainer.step(number, next(feed))
        found += [result.loss, (result.parts or {})["entropy"]]
    validation = data().validation(given)
    assert validation is not None
    return [*found, evaluate(model, trainer.objective, validation, world=world).loss]


def test_two_processes_are_one(two: Processes) -> None:
    alone = losses(None, "")
    for found in two(losses, "dp=2"):
        assert all(math.isclose(mine, one, rel_tol=2e-5) for mine, one in zip(found, alone, strict=True)), (
            found,
            alone,
        )
    assert len(set(alone)) == 9


@pytest.mark.parametrize("mesh", ["fsdp=2", "tp=2", "cp=2", "pp=2"])
def test_a_process_without_all_weights_writes_nothing(mesh: str) -> None:
    given = recipe(way())
    objective = objective_of(given.objective, writer().spec, tokenizer())
    with pytest.raises(UsageError, match=r"GRPO writes texts, for which a process needs all weights; use --mesh dp=2"):
        Trainer(writer(), given, objective, world=World(0, 2, mesh=parse(mesh, 2)))
