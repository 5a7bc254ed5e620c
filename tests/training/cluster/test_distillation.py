"""Steps beside a teacher, who is whole in each process, are those of one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from anyformer.errors import UsageError
from anyformer.recipe import CausalLM, Constant, Recipe
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.sharding import shard
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step import Trainer
from tests.laws.models import randomised
from tests.training.cluster.processes import Processes
from tests.training.test_distillation import ELSEWHERE, small, taught_by
from tests.training.test_objectives import CPU
from tests.training.texts import text_data

RECIPE = Recipe(tokens=64 * 50, batch_tokens=64, seq_len=16, schedule=(Constant(),), distillation=ELSEWHERE)


def steps(world: World | None, mesh: str, compiled: bool = False) -> Any:
    """Three steps on a mesh, or why there are none."""
    world = ALONE if world is None else replace(world, mesh=parse(mesh, world.size))
    spec, model = small("mixtral-8x7b"), randomised(small("mixtral-8x7b"))
    model: Any = shard(model, CPU, world) if world.sharded else model
    teacher, feed = randomised(small("gpt2"), 5), text_data().feed(RECIPE)
    try:
        trainer = Trainer(
            model,
            RECIPE,
            objective_of(CausalLM(), spec),
            micro_tokens=32,
            world=world,
            teacher=taught_by(teacher, RECIPE),
            compiled=compiled,
        )
    except UsageError as error:
        return str(error)
    return [trainer.step(number, next(feed)) for number in range(1, 4)]


@pytest.mark.parametrize("mesh", ["dp=2", "fsdp=2", "fsdp=2,ep=2"])
def test_two_processes_are_one(two: Processes, mesh: str) -> None:
    alone = steps(None, "")
    for found in two(steps, mesh):
        for mine, one in zip(found, alone, strict=True):
            assert (mine.loss, mine.grad_norm) == pytest.approx((one.loss, one.grad_norm), rel=2e-5)
            assert mine.parts == pytest.approx(one.parts, rel=2e-5)
    assert torch.tensor([each.loss for each in alone]).unique().numel() == 3


@pytest.mark.parametrize("mesh", ["tp=2", "cp=2", "pp=2"])
def test_meshes_that_are_refused(two: Processes, mesh: str) -> None:
    said = "a teacher reads whole rows, and is whole in each process; use --mesh fsdp=2"
    assert all(said in found for found in two(steps, mesh))
