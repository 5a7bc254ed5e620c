"""Weights, gradients and moments shared out over processes by FSDP2: Zhao et al. 2023, arXiv:2304.11277."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from anyformer.layers.block import Block
from anyformer.layers.init import initialise
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec
from anyformer.training.cluster.parts import put
from anyformer.training.cluster.world import World


def built(spec: ModelSpec, seed: int, device: torch.device, world: World) -> Transformer:
    """The model that one process would build from the seed, to the bit, of which this process holds its part alone.

    At its peak a process holds that part and one whole tensor.
    """
    model = shard(build(spec, None, device="meta"), device, world)
    model.to_empty(device=device)
    initialise(model, spec, seed, put=put)
    return model


def shard(model: Transformer, device: torch.device, world: World) -> Transformer:
    """Have the processes of the world share the model, layer by layer: its own weights become this process's part.

    What no optimiser moves (the corrections of routers) stays whole. Gradients are sums over processes.
    """
    assert world.mesh is not None
    # What routers note is a view of their scores, which nothing writes into.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    kept = {p for p in model.parameters() if not p.requires_grad}
    mesh, gather_again = device_mesh(device, world), world.mesh.zero == 3
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=gather_again, ignored_params=kept)
    # The root's are read by the loss, outside of its forward pass: they stay until the backward pass is done.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=kept)
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)  # the loss is divided by the tokens of all
        module.set_force_sum_reduction_for_comms(True)
    return model


def device_mesh(device: torch.device, world: World) -> DeviceMesh:
    """The processes as FSDP2 has them: those that share a copy of the model, in rows where there are several copies."""
    assert world.mesh is not None
    dp, fsdp = world.mesh.dp, world.mesh.fsdp
    if dp == 1:
        return init_device_mesh(device.type, (fsdp,), mesh_dim_names=("fsdp",))
    return init_device_mesh(device.type, (dp, fsdp), mesh_dim_names=("dp", "fsdp"))


def sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """The modules that are gathered each by itself; none where a process has all."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def last_of_step(model: nn.Module, last: bool) -> None:
    """Let copies of the model add up their gradients after the last part of a batch alone."""
    for module in sharded_modules(model):
        module.set_requires_all_reduce(last, recurse=False)


def settle(model: nn.Module) -> None:
    """Give back what passes without a backward pass have left gathered."""
    for module in sharded_modules(model):
        module.reshard()
