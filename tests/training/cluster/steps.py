"""Steps of shrunk presets, by one process or on a mesh: every weight random, what each step's loss and gradients are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.families import PRESETS
from anyformer.layers.block import compile_layers
from anyformer.recipe import (
    AdamW,
    Constant,
    LoadBalance,
    MaskedLM,
    MultiToken,
    ObjectiveSpec,
    PermutedLM,
    Recipe,
    ReplacedTokens,
    RouterTraining,
    RouterZLoss,
    SequenceBalance,
)
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED, Batch, PairBatch
from anyformer.training.cluster.mesh import parse
from anyformer.training.cluster.parts import together
from anyformer.training.cluster.sharding import shard
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.objective import objective_of
from anyformer.training.objectives.permuted.loss import PermutedNoise
from anyformer.training.step import Trainer
from tests.laws.models import randomised
from tests.laws.tolerance import in_float64

LENGTH, ROWS, VOCABULARY = 12, 8, 32
ROUTING = RouterTraining(
    losses=(LoadBalance(weight=0.02), SequenceBalance(weight=0.01), RouterZLoss(weight=1e-3)), correction_speed=1e-3
)


def objective_for(spec: ModelSpec) -> ObjectiveSpec:
    """What it is trained by here, on rows that are drawn at random."""
    if spec.ahead:
        return MultiToken()
    found = usual(spec, "pairs" if spec.encoder is not None else "text")
    return MaskedLM() if isinstance(found, ReplacedTokens) and spec.heads[0].name == "mlm" else found


def recipe_for(spec: ModelSpec, **changes: Any) -> Recipe:
    # With an epsilon beyond all gradients a step is in proportion to them: Adam would make as much of one that is nothing but
    # rounding as of any other.
    plain = Recipe(
        objective=objective_for(spec),
        tokens=ROWS * LENGTH * 50,
        batch_tokens=ROWS * LENGTH,
        seq_len=LENGTH,
        optimizer=AdamW(lr=0.1, eps=1.0),
        schedule=(Constant(),),
        router=ROUTING,
        clip=0.5,
    )
    return plain.but(**changes)


def batch_for(spec: ModelSpec, step: int, rows: int = ROWS, *, plain: bool = False) -> Any:
    """Rows of very different numbers of labels, some packed, the last one short; plain ones are of one document each."""
    rng = np.random.default_rng((7, step))
    shape = (rows, LENGTH)
    ids, labels = (rng.integers(5, min(VOCABULARY, spec.vocab_size), shape) for _ in range(2))
    real = np.arange(LENGTH) < np.array([LENGTH - 3 * (row % 3) for row in range(rows)])[:, None]
    labels = np.where(real & (np.arange(LENGTH) % (1 + np.arange(rows) % 3)[:, None] == 0), labels, NOT_PREDICTED)
    if spec.encoder is not None:
        source = np.arange(LENGTH) < np.array([LENGTH - row % 4 for row in range(rows)])[:, None]
        return PairBatch(np.where(source, ids, 0), source, np.where(real, ids[::-1], 0), real, labels)
    if plain:
        one = np.ones(shape, dtype=np.int64)
        return Batch(ids, np.where(labels == NOT_PREDICTED, ids, labels), one, one.cumsum(1) - 1, one - 1)
    document = np.where(np.arange(LENGTH) < 5, 1, 2) * real
    document = np.where(np.arange(rows)[:, None] % 2, document, real)
    positions = np.where(document == 2, np.arange(LENGTH) - 5, np.arange(LENGTH)) * real
    packed = Batch(np.where(real, ids, 0), labels, document.astype(np.int64), positions, document - 1)
    if isinstance(said := objective_for(spec), PermutedLM):
        return PermutedNoise(said)(packed, [np.random.default_rng((8, step, row)) for row in range(rows)])
    return packed


class Steps(NamedTuple):
    """What some steps were: each loss, norm and gradient, and the weights behind them."""

    losses: list[float]
    norms: list[float]
    gradients: list[dict[str, Tensor]]  # before clipping, by the parameter's name
    weights: dict[str, Tensor]
    loads: list[list[float]]


def trained_in_float64(world: World | None, *given: Any) -> Steps | None:
    with in_float64():
        return trained(world, *given)


def trained(
    world: World | None,
    name: str,
    mesh: str,
    n: int = 5,
    micro_rows: int = ROWS,
    rows: int = ROWS,
    changes: Mapping[str, Any] | None = None,
    recompute: Any = "none",
    compiled: bool = False,
    plain: bool = False,
) -> Steps | None:
    """The steps of a preset; on a mesh what rank 0 sees."""
    world = ALONE if world is None else replace(world, mesh=parse(mesh, world.size))
    spec = shrink(PRESETS[name].spec)
    recipe = recipe_for(spec, **changes or {})
    trainer = trainer_for(spec, recipe, world, recompute)
    if compiled:
        compile_layers(trainer.model, "aot_eager")
    found = Steps([], [], [], {}, [])
    for step in range(1, n + 1):
        batch = batch_for(spec, step, rows, plain=plain)
        trainer.micro_tokens = micro_rows * max(field.shape[1] for field in batch)
        trainer.gradients(step, batch)
        gradients = {name: together(p.grad).clone() for name, p in named(trainer) if p.grad is not None}
        found.gradients.append(of_all_stages(world, gradients))
        trainer.optimizer.zero_grad(set_to_none=True)
        result = trainer.step(step, batch)
        found.losses.append(result.loss)
        found.norms.append(result.grad_norm)
        found.loads.append([] if result.load is None else result.load.numbers().tolist())
    found.weights.update(of_all_stages(world, {name: together(p.detach()).clone() for name, p in named(trainer)}))
    assert all(map(math.isfinite, found.losses + found.norms))
    return found if world.leads else None


def of_all_stages(world: World, mine: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of all stages of a pipeline by name; what several have is equal in all."""
    if world.pp == 1:
        return mine
    found: dict[str, Tensor] = {}
    for each in world.gathered(mine):
        for name, tensor in each.items():
            assert torch.equal(found.setdefault(name, tensor), tensor), name
    return found


def trainer_for(spec: ModelSpec, recipe: Recipe, world: World, recompute: Any = "none") -> Trainer:
    objective, model = objective_of(recipe.objective, spec), randomised(spec)
    with torch.no_grad():
        for p in model.parameters():  # attention that is saturated makes much of rounding
            if p.is_floating_point():  # a table of experts by token is none
                p *= 0.5 if p.dim() > 1 else 1.0
    if world.sharded:
        model = shard(model, torch.device("cpu"), world)
    return Trainer(model, recipe, objective, recompute=recompute, world=world)


def named(trainer: Trainer) -> list[tuple[str, torch.nn.Parameter]]:
    beside = trainer.auxiliary.named_parameters() if trainer.auxiliary is not None else ()
    return [*trainer.model.named_parameters(), *((f"beside.{name}", p) for name, p in beside)]
