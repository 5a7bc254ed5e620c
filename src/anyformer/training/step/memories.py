"""The memory of the segments before that each stream of a batch has, from step to step. Dai et al. 2019, arXiv:1901.02860."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, UsageError
from anyformer.memory import SegmentMemory, refusal
from anyformer.model import Transformer
from anyformer.recipe import CausalLM, Recipe
from anyformer.spec import ModelSpec, Recompute
from anyformer.training.data.feed import Rows, Validation
from anyformer.training.data.segments import SegmentValidation
from anyformer.training.objectives.objective import LossContext

NAME = "memory"  # in a checkpoint


class SegmentMemories:
    """The memory of a batch: rows are given that of their streams, in however many parts they come.

    What passes leave counts from `advance` on, so that a pass more or less, as in a trial, changes nothing.
    """

    def __init__(self, model: Transformer, tokens: int, streams: int) -> None:
        self._spec, self._tokens = model.spec, tokens
        self._device = next(model.parameters()).device
        self.held = self._memory(streams).tensors()
        self._left: dict[int, dict[str, Tensor]] = {}  # by the first stream

    def of(self, rows: Rows) -> SegmentMemory:
        """The memory that some rows see, to be handed to the model."""
        memory, first = self._memory(len(rows.stream)), int(rows.stream[0, 0])
        memory.restore({name: held[first : first + len(rows.stream)] for name, held in self.held.items()})
        return memory

    def keep(self, rows: Rows, memory: SegmentMemory) -> None:
        """Take note of what a pass over these rows has left."""
        self._left[int(rows.stream[0, 0])] = memory.tensors()

    def advance(self) -> None:
        """Let the next step see what the passes of this one have left."""
        parts = [self._left[first] for first in sorted(self._left)]
        self.held = {name: torch.cat([part[name] for part in parts]) for name in self.held}
        self._left = {}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Bring all to what `held` was. Raises CheckpointError for that of another batch or model."""
        for name, held in self.held.items():
            if name not in saved or saved[name].shape != held.shape:
                there = tuple(saved[name].shape) if name in saved else "nothing"
                raise CheckpointError(
                    f"the checkpoint's memory is another: {name} is {there} there and {tuple(held.shape)} here"
                )
        self.held = {name: saved[name].to(self._device) for name in self.held}

    def _memory(self, streams: int) -> SegmentMemory:
        return SegmentMemory(self._spec, self._tokens, streams, vacant=self._tokens, device=self._device)


def check_memory(spec: ModelSpec, recipe: Recipe) -> None:
    """Raise UsageError where an architecture, or what it learns, goes with no memory."""
    if recipe.memory is None:
        return
    if type(recipe.objective) is not CausalLM:  # its descendants ask for further passes over whole rows
        raise UsageError(
            f"a memory of segments is for texts read from left to right, by CausalLM; {recipe.objective.kind} reads them "
            "otherwise, so leave --memory out"
        )
    if reason := refusal(spec):
        raise UsageError(f"this architecture cannot have a memory of segments: {reason}; leave --memory out")


def check_passes(recompute: Recompute, compiled: bool) -> None:
    """Raise UsageError where passes that keep a memory would be made twice, or compiled."""
    if recompute != "none":
        raise UsageError(f"--recompute {recompute} would add to the memory of segments twice; leave it out")
    if compiled:
        raise UsageError("--compile computes layers that keep nothing, and a memory of segments is kept; leave it out")


def seeing(by: LossContext, model: Transformer, validation: Validation, rows: Rows) -> LossContext:
    """The way through the model with a memory, where the rows are the first segments of a validation text."""
    if by.memory is not None or not isinstance(validation, SegmentValidation):
        return by
    return by._replace(memory=SegmentMemory(model.spec, validation.memory, len(rows.labels), device=by.device))
