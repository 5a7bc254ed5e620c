"""Gradients that processes add up: copies of the model theirs, and those that share a layer what they all read in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anyformer.model import Transformer
from anyformer.training.cluster.parts import is_part
from anyformer.training.cluster.world import World

BUCKET_NBYTES = 25 << 20  # of gradients reduced at once: large enough to be bound by bandwidth, small beside the model


def add_gradients(model: Transformer, parameters: Sequence[nn.Parameter], world: World) -> None:
    """Give each parameter its gradient over all processes, where FSDP2 has not done so. All processes call it.

    One flat reduction a bucket; a parameter that has a gradient nowhere keeps none, so that nothing decays it.
    """
    if world.size == 1 or (world.sharded and world.tp == 1):
        return
    if world.tp == 1:
        _add(_everywhere(parameters, world))
        return
    from anyformer.training.cluster.sharding import device_mesh

    mesh = device_mesh(parameters[0].device, world)
    of_copies = mesh["dp"].get_group() if mesh["fsdp"].size() == 1 and mesh["dp"].size() > 1 else None
    held, adds = _everywhere(parameters, world), model.shares.adds()
    _add([p for p in held if p in adds], mesh["tp"].get_group())
    if of_copies is not None:
        _add(held, of_copies)


def _everywhere(parameters: Sequence[nn.Parameter], world: World) -> list[nn.Parameter]:
    """Those that have a gradient in any process; in the others it is 0."""
    has = world.anywhere([p.grad is not None for p in parameters])
    held = [p for p, somewhere in zip(parameters, has, strict=True) if somewhere]
    for p in held:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    return held


def _add(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Put the sums over a group, by default of all processes, in the gradients' place."""
    gradients = [_here(p.grad) for p in parameters if p.grad is not None]
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        for gradient, reduced in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(reduced.view_as(gradient))


def _here(tensor: Tensor) -> Tensor:
    """What of a tensor this process has, not copied."""
    return tensor.to_local() if is_part(tensor) else tensor  # type: ignore[operator]  # a DTensor


def _buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors in their order, in groups of one dtype and device and of about so many bytes."""
    found: list[list[Tensor]] = []
    nbytes = 0
    for tensor in tensors:
        last = found[-1][-1] if found else None
        if last is None or (last.dtype, last.device) != (tensor.dtype, tensor.device) or nbytes >= BUCKET_NBYTES:
            found.append([])
            nbytes = 0
        found[-1].append(tensor)
        nbytes += tensor.nbytes
    return found
