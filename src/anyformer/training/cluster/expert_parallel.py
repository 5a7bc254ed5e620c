"""Experts shared out over processes that read rows of their own: each holds whole experts, and tokens travel to them.

Lepikhin et al. 2020, arXiv:2006.16668. As under tp, DTensors are how weights are held, and passes meet plain tensors. An expert's
gradient is that of the tokens of all processes that share experts, so only those with the same experts add it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from anyformer.layers.experts import Experts, StackedLinear
from anyformer.layers.moe import MoE
from anyformer.model import Transformer
from anyformer.training.cluster.tensor_parallel import see
from anyformer.training.cluster.world import Group


@dataclass(frozen=True)
class GroupTravel(Group):
    """The processes of a group, as `Travel`."""

    n_experts: int

    def loads(self, expert: Tensor) -> tuple[list[int], list[int]]:
        """As they all tell each other."""
        counts, ones = torch.bincount(expert[expert >= 0] // self.n_experts, minlength=self.size), [1] * self.size
        return counts.tolist(), self.exchange(counts, ones, ones).tolist()

    def exchange(self, rows: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        """What others have for this one, of what it has for them."""
        found = rows.new_empty(sum(receives), *rows.shape[1:])
        dist.all_to_all_single(found, rows.contiguous(), list(receives), list(sends), group=self.group)
        return found


def experts_of(model: Transformer) -> list[Experts]:
    """The experts of each mixture that a router chooses among."""
    return [module.experts for module in model.modules() if isinstance(module, MoE)]


def spread(model: Transformer, mesh: DeviceMesh) -> None:
    """Leave in a model without numbers, on the meta device, this process's experts alone. `mesh` shares them, in equal parts."""
    for experts in experts_of(model):
        for module, name, parameter in _weights(experts):
            n = parameter.shape[0] // mesh.size()
            local = torch.empty(n, *parameter.shape[1:], dtype=parameter.dtype, device="meta")
            held = DTensor.from_local(
                local, mesh, [Shard(0)], run_check=False, shape=parameter.shape, stride=parameter.stride()
            )
            module.register_parameter(name, nn.Parameter(held, requires_grad=parameter.requires_grad))


def joined_experts(model: Transformer, mesh: DeviceMesh) -> None:
    """Have tokens travel between the processes of `mesh`. FSDP2 has its part of the model already."""
    for experts in experts_of(model):
        experts.elsewhere = GroupTravel(mesh.get_group(), experts.spec.n_experts // mesh.size())
        owned = [((module, name), None) for module, name, _ in _weights(experts)]
        experts.register_forward_pre_hook(partial(see, owned))


def _weights(experts: Experts) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in experts.children():
        if isinstance(module, StackedLinear):
            yield from ((module, name, parameter) for name, parameter in [*module.named_parameters(recurse=False)])
