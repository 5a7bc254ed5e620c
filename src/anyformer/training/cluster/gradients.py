"""Gradients that processes add up: copies of the model theirs, and those that share a layer what they all read in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anyformer.model import Transformer
from anyformer.training.cluster.parts import here
from anyformer.training.cluster.stages import column
from anyformer.training.cluster.world import World

BUCKET_NBYTES = 25 << 20  # of gradients reduced at once: large enough to be bound by bandwidth, small beside the model


def counted_once(model: Transformer, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Those of a process's parameters that no stage before it has."""
    stage = model.stack.stage
    if stage is None:
        return [*parameters]
    before = {name for name, which in stage.common.items() if which[0] < stage.number}
    left = {p for name, p in model.named_parameters() if name in before}
    return [p for p in parameters if p not in left]


def norm_over_stages(norm: Tensor, device: torch.device, world: World) -> Tensor:
    """That of what all stages have, of which `norm` is this one's."""
    from anyformer.training.cluster.sharding import device_mesh

    square = norm.detach().square()
    dist.all_reduce(square, group=device_mesh(device, world)["pp"].get_group())
    return square.sqrt()


def add_gradients(model: Transformer, parameters: Sequence[nn.Parameter], world: World) -> None:
    """Give each parameter its gradient over all processes, where FSDP2 has not done so. All processes call it.

    One flat reduction a bucket; a parameter that has a gradient nowhere keeps none, so that nothing decays it.
    """
    if world.size == 1 or (world.sharded and world.tp == world.pp == 1):
        return
    if not world.sharded:
        _add(_everywhere(parameters, world, [None]), None)
        return
    from anyformer.training.cluster.sharding import device_mesh

    mesh = device_mesh(parameters[0].device, world)
    groups: dict[str, Any] = {axis: mesh[axis].get_group() for axis in ("dp", "fsdp", "tp") if mesh[axis].size() > 1}
    held = _everywhere(parameters, world, groups.values())
    if "tp" in groups:
        adds = model.shares.adds()
        _add([p for p in held if p in adds], groups["tp"])
    if "dp" in groups and "fsdp" not in groups:
        _add(held, groups["dp"])
    if model.stack.stage is not None:
        _add_of_stages(model, world)


def _add_of_stages(model: Transformer, world: World) -> None:
    """Give what several stages have, a tied table or a shared layer, what it gets in all of them."""
    assert model.stack.stage is not None
    named, common = dict(model.named_parameters()), model.stack.stage.common
    for which in sorted(set(common.values())):
        group = column(world, which)
        if group is not None:
            mine = [named[name] for name, those in common.items() if those == which and named[name].requires_grad]
            _add(_everywhere(mine, world, [group]), group)


def _everywhere(
    parameters: Sequence[nn.Parameter], world: World, groups: Iterable[dist.ProcessGroup | None]
) -> list[nn.Parameter]:
    """Those that have a gradient in any process of the groups, as `World.anywhere` has them; in the others it is 0."""
    has = world.anywhere([p.grad is not None for p in parameters], groups)
    held = [p for p, somewhere in zip(parameters, has, strict=True) if somewhere]
    for p in held:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    return held


def _add(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Put the sums over a group, None: over all processes, in the gradients' place."""
    gradients = [here(p.grad) for p in parameters if p.grad is not None]
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        for gradient, reduced in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
            gradient.copy_(reduced.view_as(gradient))


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
