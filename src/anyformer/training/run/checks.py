"""Faults of a run that can be known before anything is built or written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial

import torch

from anyformer.capacity import free_nbytes, refuse_beyond_memory
from anyformer.costs.state import state_nbytes
from anyformer.errors import UsageError
from anyformer.layers.embedding import learned_positions
from anyformer.layers.packing import packed_nbytes
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec, parameters
from anyformer.training.cluster.world import World
from anyformer.training.data.feed import TrainingData
from anyformer.training.objectives.objective import objective_of
from anyformer.training.step.memories import check_memory
from anyformer.training.step.optimizer import kept_nbytes
from anyformer.training.step.routing import check_router_losses

SOURCES = {
    "text": "one text (--data)",
    "pairs": "pairs of texts (--source and --target)",
    "labelled": "labelled text (--data with text and label, or tokens and labels)",
    "conversations": "conversations (--data with messages, or prompt and completion)",
    "preferences": "preferences (--data with prompt, chosen and rejected)",
    "prompts": "prompts (--data with prompt, and what its answers are judged by)",
}


def check_run(spec: ModelSpec, recipe: Recipe, data: TrainingData) -> None:
    """Raise what would stop a run of this architecture by this recipe on this data before its first step."""
    objective = objective_of(recipe.objective, spec)
    if recipe.objective.reads != data.reads:
        given, wanted = SOURCES[data.reads], SOURCES[recipe.objective.reads]
        raise UsageError(f"{recipe.objective.kind} reads {wanted}, and what is given is {given}")
    objective.check(recipe, data)
    if recipe.distillation is not None and not objective.has_teacher:
        raise UsageError(
            f"{recipe.objective.kind} is not learnt from a teacher, who scores the tokens of one pass; leave --teacher out"
        )
    if spec.ahead and not objective.trains_ahead:
        raise UsageError(
            f"the objective {recipe.objective.kind} leaves the {len(spec.ahead)} modules of `ahead` untrained; "
            "use the objective MultiToken (--objective multi-token), or leave them out of the specification"
        )
    check_memory(spec, recipe)
    check_router_losses(spec, recipe)
    check_vocabulary(spec if data.labels is None else spec.but(heads=()), data.vocab_size)
    auxiliary = objective.auxiliary()
    for each in (spec, *([auxiliary.spec] if auxiliary is not None else [])):
        check_positions(each, partial(data.longest, spec, recipe), recipe.seq_len)
    recipe.learning_rates(spec.stack.d_model)


def check_vocabulary(spec: ModelSpec, vocab_size: int) -> None:
    """Raise UsageError where the tokenizer has ids that the model has no row for."""
    # A single row scores tokens, and names none.
    tables = [head.table.rows for head in spec.heads[:1] if head.table and head.pool is None and head.table.rows > 1]
    rows = min([spec.vocab_size, *tables])
    if rows < vocab_size:
        raise UsageError(
            f"the model has a vocabulary of {rows}, smaller than the tokenizer's {vocab_size}; "
            f"resize it with --vocab {vocab_size}, or use another tokenizer"
        )


def check_positions(spec: ModelSpec, longest: Callable[[int], int], seq_len: int) -> None:
    """Raise UsageError where sequences, the longest of rows of so many tokens, go beyond the model's learned positions."""
    if (fits := longest_row(spec, longest, seq_len)) < seq_len:
        said = (
            f"sequences of {longest(seq_len)} tokens go beyond the model's {learned_positions(spec)} learned positions"
        )
        raise UsageError(f"{said}; {f'use --seq-len {fits} or less' if fits else 'leave longer ones out'}")


def longest_row(spec: ModelSpec, longest: Callable[[int], int], seq_len: int) -> int:
    """Tokens of a row, so many at most, whose longest sequence has a learned position for each; 0: no row is short enough."""
    learned = learned_positions(spec)
    if learned is None or longest(seq_len) <= learned:
        return seq_len
    return bisect_right(range(1, seq_len), learned, key=longest)


def check_room(spec: ModelSpec, recipe: Recipe, device: torch.device, world: World) -> None:
    """Raise UsageError where weights, gradients and moments alone are more than the memory that is free."""
    needed = _state_nbytes(spec, recipe) / world.mesh.copy * _on_one_memory(device, world)
    refuse_beyond_memory(
        needed, device, "training a model of this size", "resize it (--params), or take another device"
    )


def fits_beside_others(spec: ModelSpec, recipe: Recipe, device: torch.device, world: World) -> bool:
    """Whether every process can have weights, gradients and moments of its own, and room for as much again."""
    free = free_nbytes(device)
    return free is None or 2 * _state_nbytes(spec, recipe) * _on_one_memory(device, world) < free


def _on_one_memory(device: torch.device, world: World) -> int:
    return world.local_size if device.type == "cpu" else 1


def _state_nbytes(spec: ModelSpec, recipe: Recipe) -> float:
    state = state_nbytes(parameters(spec).total)
    if (lora := recipe.lora) is not None:  # an adapter's own is little
        return state.weights if lora.packing is None else packed_nbytes(spec, lora.packing)
    return state.weights + state.gradients + kept_nbytes(spec, recipe.optimizer)
