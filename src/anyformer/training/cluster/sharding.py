"""Weights, gradients and moments shared out over processes by FSDP2: Zhao et al. 2023, arXiv:2304.11277."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from anyformer.errors import UsageError
from anyformer.layers.block import Block
from anyformer.layers.init import initialise
from anyformer.model import Transformer, build
from anyformer.spec import ModelSpec
from anyformer.training.cluster.expert_parallel import experts_of, joined_experts, spread
from anyformer.training.cluster.parts import put
from anyformer.training.cluster.stages import keep, stage_of
from anyformer.training.cluster.tensor_parallel import joined_layers, outlined
from anyformer.training.cluster.world import World


def built(spec: ModelSpec, seed: int, device: torch.device, world: World) -> Transformer:
    """The model that one process would build from the seed, to the bit, of which this process holds its part alone.

    At its peak a process holds that part and one whole tensor.
    """
    model = outline(spec, device, world).to_empty(device=device)
    initialise(model, spec, seed, put=put)
    return model


def outline(spec: ModelSpec, device: torch.device, world: World) -> Transformer:
    """This process's part of a model, computed on that device: without numbers, on the meta device, still."""
    mesh = device_mesh(device, world)
    model = build(spec, None, device="meta") if world.tp == 1 else outlined(spec, mesh["tp"])
    if world.pp > 1:
        keep(model, stage_of(spec, world.mesh, world.stage))
    if world.mesh.ep > 1:
        spread(model, expert_mesh(device, world)["ep"])
    if world.mesh.shards > 1:
        _fully_sharded(model, device, world)
    if world.tp > 1:
        joined_layers(model, spec, mesh["tp"])
    if world.mesh.ep > 1:
        joined_experts(model, expert_mesh(device, world)["ep"])
    return model


def shard(model: Transformer, device: torch.device, world: World) -> Transformer:
    """The model shared out over the processes of the world: each has its part of the weights alone.

    Under fsdp it is the same module, elsewhere another. What no optimiser moves (the corrections of routers) stays whole.
    """
    if world.tp == world.pp == 1 and world.mesh.ep == 1:
        return _fully_sharded(model, device, world)
    part = outline(model.spec, device, world).to_empty(device=device)
    whole = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            put(parameter, whole[name].detach())
    part.labels = model.labels
    return part


def _fully_sharded(model: Transformer, device: torch.device, world: World) -> Transformer:
    """Have FSDP2 share the model, layer by layer: its own weights become this process's part. Gradients are sums.

    Raises UsageError for a weight that is one number (ReZero's), of which there are no parts.
    """
    if single := next((name for name, p in model.named_parameters() if p.requires_grad and not p.dim()), None):
        raise UsageError(
            f"this cannot be trained on the mesh {world.mesh}: {single} is one number, and FSDP2 shares out none such; "
            f"use --mesh dp={world.size}"
        )
    # What routers note is a view of their scores, which nothing writes into.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    kept = {p for p in model.parameters() if not p.requires_grad}
    axes = ("dp", "fsdp") if world.mesh.dp > 1 else ("fsdp",)
    mesh, gather_again = device_mesh(device, world)[axes], world.mesh.zero == 3
    layers = [module for module in model.modules() if isinstance(module, Block)]
    among = [(module, mesh) for module in reversed(layers)]  # a layer inside another before it
    if world.mesh.ep > 1:  # what of experts is left to share out; before the layers that have them
        alike = expert_mesh(device, world)[axes]
        among = [*((module, alike) for module in experts_of(model)), *among]
    for module, its in among:
        fully_shard(module, mesh=its, reshard_after_forward=gather_again, ignored_params=kept)
    # The root's are read by the loss, outside of its forward pass: they stay until the backward pass is done.
    fully_shard(model, mesh=mesh, reshard_after_forward=False, ignored_params=kept)
    for module in sharded_modules(model):
        module.set_gradient_divide_factor(1.0)  # the loss is divided by the tokens of all
        module.set_force_sum_reduction_for_comms(True)
    return model


def device_mesh(device: torch.device, world: World) -> DeviceMesh:
    """The processes of the world by the mesh's axes, pp, dp, fsdp and tp. Those that share a layer are next to each other."""
    mesh = world.mesh
    sizes = (("pp", mesh.pp), ("dp", world.size // mesh.copy), ("fsdp", mesh.shards), ("tp", mesh.tp))
    return _device_mesh(device.type, sizes, dist.group.WORLD)


def expert_mesh(device: torch.device, world: World) -> DeviceMesh:
    """The same processes by what they have of the experts: in a stage dp copies of fsdp parts of what each of ep has."""
    mesh = world.mesh
    sizes = (("pp", mesh.pp), ("dp", mesh.dp), ("fsdp", mesh.shards // mesh.ep), ("ep", mesh.ep))
    return _device_mesh(device.type, sizes, dist.group.WORLD)


@cache
def _device_mesh(device: str, sizes: tuple[tuple[str, int], ...], processes: dist.ProcessGroup | None) -> DeviceMesh:
    """Made once for the processes that are joined: each makes groups of its own."""
    # Parts of parts are put together axis by axis, as they have to be; it warns that one message might do.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    names, numbers = zip(*sizes, strict=True)
    return init_device_mesh(device, numbers, mesh_dim_names=names)


def sharded_modules(model: nn.Module) -> Iterator[FSDPModule]:
    """The modules that are gathered each by itself; none where a process has all."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def last_of_step(model: nn.Module, last: bool) -> None:
    """Let copies of the model add up their gradients after the last part of a batch alone."""
    for module in sharded_modules(model):
        module.set_requires_all_reduce(last, recurse=False)


@contextmanager
def gathered(model: nn.Module, world: World) -> Iterator[None]:
    """Meanwhile each process has all weights, which no pass gives back: one makes passes that others do not."""
    modules = list(sharded_modules(model))
    for module in modules:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(world.mesh.zero == 3 and module is not model, recurse=False)
        settle(model)


def settle(model: nn.Module) -> None:
    """Give back what passes without a backward pass have left gathered."""
    for module in sharded_modules(model):
        module.reshard()
