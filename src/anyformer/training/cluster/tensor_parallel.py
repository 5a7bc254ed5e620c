"""Layers shared out over processes: each computes with its heads, features and rows of the vocabulary, on plain tensors.

Shoeybi et al. 2019, arXiv:1909.08053. DTensors are how weights, gradients and moments are held, so that the optimiser,
checkpoints and FSDP2 know the whole of which a process has a part; a pass is given what is here, and never meets a DTensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from anyformer.layers.block import Block
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec, Place, tensors
from anyformer.training.cluster.meeting import Owned, meet, owner_of
from anyformer.training.cluster.narrowing import TensorPart, cuts, narrowed
from anyformer.training.cluster.world import Group


class GroupRanks(Group):
    """The processes of a group, as `Ranks`."""

    def reduce(self, x: Tensor, *, largest: bool = False) -> Tensor:
        """The sum over the group, or the largest, in the place of x."""
        dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.group)
        return x


@dataclass(frozen=True)
class Shares:
    """How a process has a part of a model's layers."""

    added: frozenset[Owned]  # whose gradients the ranks add up

    def adds(self) -> set[nn.Parameter]:
        """The parameters that all ranks read alike within split layers."""
        held = (module._parameters[name] for module, name in self.added)
        return {p for p in held if isinstance(p, nn.Parameter)}


def outlined(spec: ModelSpec, mesh: DeviceMesh) -> Transformer:
    """A process's part of a model, without numbers, on the meta device. `mesh` is of the processes that share each layer.

    Raises SpecError for an architecture that cannot be shared out so.
    """
    rank, ranks = mesh.get_local_rank(), mesh.size()
    narrow = narrowed(spec, rank, ranks)
    model, cut = build(narrow, None, device="meta"), cuts(spec, narrow, rank, ranks)
    for name, weight in tensors(spec, Place()):
        each, (module, last) = cut[name], owner_of(model, name)
        if not weight.trainable:  # moved by what all know, and whole on all
            continue
        local = whole = torch.empty(weight.shape, device="meta")
        placement: Shard | Replicate = Replicate()
        if each is not None and not each.shared:
            local, placement = whole.narrow(each.dim, each.start, each.length).contiguous(), Shard(each.dim)
        held = DTensor.from_local(local, mesh, [placement], run_check=False, shape=whole.shape, stride=whole.stride())
        module.register_parameter(last, nn.Parameter(held))
    return model


def joined_layers(model: Transformer, spec: ModelSpec, mesh: DeviceMesh) -> None:
    """Have the processes of `mesh` compute an outlined model's passes together. FSDP2, if any, has its part of it already."""
    rank, ranks = mesh.get_local_rank(), GroupRanks(mesh.get_group())
    held = {name for name, _ in model.named_parameters()}  # of all, where other processes have other layers
    cut = {name: each for name, each in cuts(spec, model.spec, rank, ranks.size).items() if name in held}
    # A block before what it holds.
    blocks: dict[nn.Module, list[tuple[Owned, TensorPart | None]]] = {
        m: [] for m in model.modules() if isinstance(m, Block)
    }
    owner = {inner: block for block in blocks for inner in block.modules()}
    for name, each in cut.items():
        module, last = owner_of(model, name)
        if isinstance(module._parameters[last], DTensor):
            taken = each if each is not None and each.shared else None
            blocks.setdefault(owner.get(module, model), []).append(((module, last), taken))
    for module, owned in blocks.items():
        module.register_forward_pre_hook(partial(see, owned))
    model.shares = Shares(frozenset(meet(model, cut, spec.vocab_size, ranks)))


def see(owned: Iterable[tuple[Owned, TensorPart | None]], module: nn.Module, given: Any) -> None:
    """Before a pass of a layer: the parts of its weights that are here stand for the whole ones, and bring back their gradients.

    In the instance's own dictionary, where they are found before parameters, which stay what they are to everybody else.
    """
    for (holder, name), taken in owned:
        parameter = cast(DTensor, holder._parameters[name])
        local = parameter.to_local()
        holder.__dict__[name] = local if taken is None else local.narrow(taken.dim, taken.start, taken.length)


def keep_gradients_apart(parameters: Iterable[nn.Parameter]) -> None:
    """Have each parameter copy a gradient that another was given too, as both terms of a sum are: it is added to and scaled.

    Autograd does so of plain tensors; of a DTensor it does not see what is inside.
    """
    owners: dict[int, nn.Parameter] = {}  # by where the gradient lies
    for parameter in parameters:
        if isinstance(parameter, DTensor):
            parameter.register_post_accumulate_grad_hook(partial(_take, owners))


def _take(owners: dict[int, nn.Parameter], parameter: nn.Parameter) -> None:
    """Note whose the gradient is, or copy it."""
    at = _address(parameter.grad)
    owner = owners.get(at)
    if owner is None or owner is parameter or _address(owner.grad) != at:
        owners[at] = parameter
    elif parameter.grad is not None:
        parameter.grad = parameter.grad.clone()


def _address(gradient: Tensor | None) -> int:
    """Where the part of it that is here lies in memory."""
    return 0 if gradient is None else cast(DTensor, gradient).to_local().data_ptr()
