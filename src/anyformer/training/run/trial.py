"""A trial of a run on this machine: the seconds of a step and its memory, from passes that leave no trace in the model."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import torch
from torch import Tensor

from anyformer.capacity import free_nbytes, refuse_beyond_memory
from anyformer.layers.held import HeldWeight
from anyformer.training.cluster.parts import here
from anyformer.training.cluster.refusals import indivisible
from anyformer.training.data.feed import Rows, rows_at
from anyformer.training.step import Trainer
from anyformer.training.step.trainer import rows_of

FEW = 8  # rows at most, and no more than a share of as many, tell what all of them keep


def trial(trainer: Trainer, batch: Rows) -> tuple[float, int]:
    """(seconds of a step, bytes of memory at its peak). Raises UsageError where the rows of a pass keep more than is free."""
    part = rows_at(batch, slice(rows_of(batch, trainer.micro_tokens * trainer.world.size)))
    seconds, before = [], [tensor.clone() for tensor in trainer.untrained]
    check_pass(trainer, part)
    for _ in range(3):
        start = time.perf_counter()
        trainer.gradients(1, part)
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        seconds.append(time.perf_counter() - start)
        trainer.optimizer.zero_grad(set_to_none=True)
    for tensor, held in zip(trainer.untrained, before, strict=True):
        tensor.copy_(held)
    state = sum(nbytes * here(p).numel() // max(p.numel(), 1) for p, nbytes in kept_of(trainer))
    in_use = (
        torch.cuda.max_memory_allocated(trainer.device)
        if trainer.device.type == "cuda"
        else psutil.Process().memory_info().rss
    )
    return min(seconds) * len(batch.labels) / len(part.labels), in_use + state


def check_pass(trainer: Trainer, part: Rows) -> None:
    """Raise UsageError where a pass over a part keeps more than the memory that is free, as fewer of its rows tell."""
    rows, free = len(part.labels), free_nbytes(trainer.device)
    few = min(FEW, rows // FEW)
    if few < 2 or free is None or trainer.world.size > 1 or trainer.compiled:  # for few rows by itself
        return
    half, several = (kept_by_pass(trainer, rows_at(part, slice(n))) for n in (few // 2, few))
    each = (several - half) / (few - few // 2)
    remedy = "take a smaller batch (--batch-tokens), shorter rows (--seq-len), --recompute full or a smaller model"
    fit = int(free / 2 / max(each, 1.0))  # beside the optimiser's state, and what else is made on the way
    if fit and indivisible(trainer.model.spec, trainer.recipe) is None:
        places = max(field[0].size for field in part) << (fit.bit_length() - 1)
        remedy = f"compute it in parts (--micro-tokens {places}), which makes the same step"
    refuse_beyond_memory(several + each * (rows - few), trainer.device, f"a step of {rows:,} rows at once", remedy)


def kept_by_pass(trainer: Trainer, rows: Rows) -> int:
    """The bytes that autograd keeps of a pass over some rows, weights among them, but those held in few bits."""
    held: dict[int, int] = {}  # by address, which memory that is let go on the way gives to what is kept later

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, HeldWeight):  # which has no storage of its own
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.gradients(1, rows)
    return sum(held.values())


def kept_of(trainer: Trainer) -> Iterator[tuple[Tensor, int]]:
    """The trained parameters that this process has a part of, and the bytes that the optimiser keeps of each as a whole."""
    rule = trainer.recipe.optimizer
    return ((p, 4 * rule.numbers_kept(p.shape, way.is_map)) for p, way in trainer.ways.items())
