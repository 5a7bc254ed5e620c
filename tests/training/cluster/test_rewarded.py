"""Answers that processes write, each to its own prompts, by all weights where they share them: the steps are those of one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from anyformer.errors import UsageError
from anyformer.recipe import RLOO
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.objective import objective_of
from anyformer.training.run.evaluation import evaluate
from anyformer.training.step import Trainer
from tests.training.cluster.processes import Processes
from tests.training.test_objectives import CPU
from tests.training.test_rewarded import data, recipe, tokenizer, way, writer


def losses(world: World | None, mesh: str, updates: int = 1, micro_tokens: int | None = None) -> list[float]:
    """Of a few steps, the entropy of what was drawn, and of what was held out behind them."""
    world = ALONE if world is None else replace(world, mesh=parse(mesh, world.size))
    model, given = writer(), recipe(way(RLOO, updates=updates, clip_above=0.01))
    if world.sharded:
        from anyformer.training.cluster.sharding import shard

        model = shard(model, CPU, world)
    objective = objective_of(given.objective, model.spec, tokenizer())
    trainer = Trainer(model, given, objective, world=world, micro_tokens=micro_tokens)
    feed, found = data().feed(given), list[float]()
    for number in range(1, 5):
        result = trainer.step(number, next(feed))
        found += [result.loss, (result.parts or {})["entropy"]]
    validation = data().validation(given)
    assert validation is not None
    trainer.settle()
    evaluation = evaluate(model, trainer.objective, validation, world=world)
    assert [each.line for each in evaluation.answers] == list(range(1, 7))
    return [*found, evaluation.loss]


@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2", "fsdp=2,zero=2"])
def test_two_processes_are_one(mesh: str, two: Processes) -> None:
    for how in ((1, None), (3, 200)):
        alone = losses(None, "", *how)
        for found in two(losses, mesh, *how):
            assert all(math.isclose(mine, one, rel_tol=2e-5) for mine, one in zip(found, alone, strict=True)), (
                found,
                alone,
            )
        assert len(set(alone)) == 9


@pytest.mark.parametrize("mesh", ["tp=2", "cp=2", "pp=2"])
def test_a_process_that_computes_no_whole_pass_writes_nothing(mesh: str) -> None:
    given = recipe(way())
    objective = objective_of(given.objective, writer().spec, tokenizer())
    with pytest.raises(UsageError, match=r"GRPO writes texts, each of which one process writes; use --mesh fsdp=2"):
        Trainer(writer(), given, objective, world=World(0, 2, mesh=parse(mesh, 2)))


def alone_in_between(world: World | None, zero: int) -> tuple[list[bool], list[bool], bool]:
    """(which layers are whole behind a pass of one process alone, and after one of both; whether the first was right)."""
    from torch.distributed.tensor import DTensor

    from anyformer.training.cluster.sharding import shard

    assert world is not None
    world = replace(world, mesh=parse(f"fsdp=2,zero={zero}", world.size))
    whole, model = writer(), shard(writer(), CPU, world)
    ids = torch.arange(8)[None]

    def whole_layers() -> list[bool]:
        return [not isinstance(next(block.parameters()), DTensor) for block in model.stack.blocks]

    with world.all_weights(model), torch.inference_mode():
        right = not world.leads or torch.equal(model(ids).logits, whole(ids).logits)
    found = [*whole_layers()]
    with torch.no_grad():
        model(ids)
    return found, whole_layers(), right


@pytest.mark.parametrize("zero", [2, 3])
def test_all_weights_are_there_meanwhile(zero: int, two: Processes) -> None:
    """As a pass leaves them: under zero=3 it has given a layer's weights back, under zero=2 kept them."""
    for behind, after, right in two(alone_in_between, zero):
        assert right
        assert not any(behind)
        assert set(after) == {zero == 2}
