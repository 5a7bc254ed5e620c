"""Whole runs of a small model, by one process or on a mesh, which end early when they are told to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch

import anyformer.layers as L
from anyformer.recipe import OptimizerSpec
from anyformer.spec import BlockSpec, BranchSpec, Count, ModelSpec
from anyformer.training.checkpoint.metrics import StepMetrics
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.parts import together
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.data.text import TextData
from anyformer.training.run import RunOptions, train
from anyformer.training.run.progress import Watcher
from tests.training import killing
from tests.training.cluster.steps import of_all_stages

STEPS = killing.STEPS


class Crash(Exception):
    """What nobody foresaw."""


class Crashing(Watcher):
    """Fails after a step."""

    def __init__(self, at: int | None) -> None:
        super().__init__()
        self.at = at

    def step(self, metrics: StepMetrics) -> None:
        if metrics.step == self.at:
            raise Crash


class Ran(NamedTuple):
    """The figures of a run as it goes on to its end, and its weights."""

    losses: dict[int, float]  # by step
    validations: list[float]
    weights: dict[str, torch.Tensor]


def options(world: World, save: Literal["now", "async"] = "now") -> RunOptions:
    every, cpu = killing.SAVE_EVERY, torch.device("cpu")
    return RunOptions(device=cpu, save_every=every, validations=5, plan=False, world=world, save=save)


def with_experts() -> ModelSpec:
    """The same model with a mixture for each feed-forward."""
    spec = killing.spec()
    attention, dense = spec.stack.blocks[0].sublayers
    router = L.RouterSpec(n_experts=Count(4), top_k=2)
    mixture = L.MoESpec(router=router, expert=dense.branches[0].mixer)
    block = BlockSpec(sublayers=(attention, replace(dense, branches=(BranchSpec(mixer=mixture),))))
    return spec.but(stack=replace(spec.stack, blocks=(block,) * len(spec.stack.blocks)))


def ran(
    world: World | None,
    mesh: str,
    out: Path,
    crash_at: int | None = None,
    dropout: bool = False,
    watcher: Watcher | None = None,
    mixture: bool = False,
    save: Literal["now", "async"] = "now",
    optimizer: OptimizerSpec | None = None,
) -> Ran | None:
    """A run in `out`, begun or gone on with; None where it crashed."""
    world = ALONE if world is None else replace(world, mesh=parse(mesh, world.size))
    recipe = killing.recipe() if dropout else killing.recipe().but(dropout=killing.DropoutSpec())
    recipe = recipe.but(optimizer=optimizer or recipe.optimizer)
    data = TextData(killing.corpus(40, 1), killing.corpus(5, 2), None)
    try:
        by = watcher or Crashing(crash_at)
        found = train(
            with_experts() if mixture else killing.spec(),
            recipe,
            data,
            out=out,
            options=options(world, save),
            watcher=by,
        )
    except Crash:
        return None
    mine = {name: together(p.detach()).clone() for name, p in found.model.state_dict().items()}
    weights = of_all_stages(world, mine)
    return Ran({s.step: s.loss for s in found.steps}, [v.validation_loss for v in found.validations], weights)
