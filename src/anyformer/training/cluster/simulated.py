"""A training step of any size without numbers: what one of its processes holds, and what it sends.

The step is the one that runs, on tensors that have shapes and no memory, in one process that PyTorch's fake process group tells
it is the first of many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.errors import UsageError
from anyformer.model import Transformer
from anyformer.observation.passes import loss_of
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec, Recompute
from anyformer.training.cluster.context_parallel import of_row, stretch_rows
from anyformer.training.cluster.expert_parallel import GroupTravel, experts_of
from anyformer.training.cluster.gradients import add_gradients
from anyformer.training.cluster.mesh import Mesh
from anyformer.training.cluster.refusals import refuse_on_mesh
from anyformer.training.cluster.sharding import device_mesh, expert_mesh, last_of_step, outline
from anyformer.training.cluster.world import World

TRAVEL = "all-to-all"
CPU = torch.device("cpu")
# c10d's operators: what they are called here, which argument has the bytes of the whole, and which says among whom.
KINDS = {
    "_allgather_base_": ("all-gather", 0, 2),
    "allgather_": ("all-gather", 0, 2),
    "_reduce_scatter_base_": ("reduce-scatter", 1, 2),
    "reduce_scatter_": ("reduce-scatter", 1, 2),
    "allreduce_": ("all-reduce", 0, 1),
    "alltoall_base_": (TRAVEL, 1, 2),
}
Traffic = Mapping[tuple[str, str], int]  # bytes by axis of the mesh and kind of collective


class Held(NamedTuple):
    """What a process has of a weight."""

    whole: tuple[int, ...]
    here: tuple[int, ...]
    split: Mapping[str, int]  # by axis of the mesh, which dimension is cut over it


@dataclass(frozen=True)
class Step:
    """The first process's: weights by name, and the bytes of weights, gradients and activations that it sends in a step.

    Of what is gathered, scattered or added up they are those of the whole; of tokens that travel, those that go out.
    """

    weights: Mapping[str, Held]
    traffic: Traffic


def simulated(
    spec: ModelSpec,
    mesh: Mesh,
    *,
    rows: int,
    seq_len: int,
    source_len: int = 0,
    micro_batches: int = 1,
    recompute: Recompute = "none",
) -> Step:
    """A step in float32, of `rows` whole sequences at once in so many parts, predicted token by token; experts are loaded evenly.

    Raises UsageError or SpecError where the mesh cannot train the architecture, and inside a run of several processes.
    """
    world = _Simulated(0, mesh.processes, mesh=mesh)
    refuse_on_mesh(spec, Recipe(tokens=seq_len, batch_tokens=seq_len, seq_len=seq_len), world)
    with _pretended(mesh.processes):
        model = outline(spec, CPU, world)
        weights = {name: _held(p) for name, p in model.named_parameters()}
        with FakeTensorMode(allow_non_fake_inputs=True):
            parts = _sent(
                model.to_empty(device=CPU), world, (rows, seq_len, source_len), min(micro_batches, 2), recompute
            )
    # Of several parts of a batch the first sends what each but the last does.
    first, last = parts[0], parts[-1]
    traffic = {key: (micro_batches - 1) * first[key] + last[key] for key in {**first, **last}}
    return Step(weights, traffic)


def _sent(
    model: Transformer, world: World, sizes: tuple[int, int, int], parts: int, recompute: Recompute
) -> list[Counter[tuple[str, str]]]:
    """What each part of a batch sends."""
    rows, seq_len, source_len = sizes
    stretch_rows(model, world)
    for experts in experts_of(model):
        if isinstance(travel := experts.elsewhere, GroupTravel):
            experts.elsewhere = _Even(travel.group, travel.n_experts)
    model.recompute = recompute
    found = []
    for i in range(parts):
        last_of_step(model, i == parts - 1)
        ids, sources = (torch.zeros(rows, n, dtype=torch.long) for n in (seq_len, source_len or seq_len))
        with Watch(world) as watch:
            loss_of(model, ids, sources).backward()
            if i == parts - 1:
                add_gradients(model, [*model.parameters()], world)
        found.append(watch.sent)
    return found


def _held(parameter: Tensor) -> Held:
    mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
    here: Any = parameter if mesh is None else parameter.to_local()  # type: ignore[operator]  # a DTensor
    names = () if mesh is None else mesh.mesh_dim_names
    split: dict[str, int] = {
        name: each.dim for name, each in zip(names, placements, strict=True) if hasattr(each, "dim")
    }
    return Held(tuple(parameter.shape), tuple(here.shape), split)


class _Simulated(World):
    """The processes of a step that is simulated: what they tell each other beside it is alike in all."""

    def anywhere(self, flags: Any) -> list[bool]:
        return list(flags)


class _Even(GroupTravel):
    """Experts that are all chosen as often, whatever the router says."""

    def loads(self, expert: Tensor) -> tuple[list[int], list[int]]:
        counts, ones = torch.zeros(self.size, dtype=torch.long), [1] * self.size
        self.exchange(counts, ones, ones)
        each, more = divmod(len(expert), self.size)
        even = [each + (i < more) for i in range(self.size)]
        return even, even


class Watch(TorchDispatchMode):
    """Adds up the bytes of the collectives that run within, by axis of the world's mesh and kind."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.axes, self.sent = _axes(world), Counter[tuple[str, str]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind, whole, among = KINDS[func.overloadpacket.__name__]
            group = dist.ProcessGroup.unbox(args[among])
            if group.size() > 1:
                axis = "ep" if kind == TRAVEL else self.axes.get(group.group_name, "dp")
                self.sent[axis, kind] += _nbytes(args[whole])
        return func(*args, **(kwargs or {}))


def _axes(world: World) -> dict[str, str]:
    """The axis of each group of processes by its name; the others add up copies."""
    axes = {}
    if world.mesh is not None and world.mesh.ep > 1:
        axes[expert_mesh(CPU, world)["fsdp"].get_group().group_name] = "fsdp"
    if world.sharded:
        axes |= {device_mesh(CPU, world)[axis].get_group().group_name: axis for axis in ("dp", "fsdp", "tp")}
    if world.cp > 1:
        axes[of_row(world).group_name] = "cp"
    return axes


def _nbytes(given: Any) -> int:
    return given.nbytes if isinstance(given, Tensor) else sum(map(_nbytes, given))


@contextmanager
def _pretended(processes: int) -> Iterator[None]:
    """PyTorch's word that this process is the first of so many."""
    if dist.is_initialized():
        raise UsageError("a step of several processes is simulated in one; start it without torchrun")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        yield
    finally:
        dist.destroy_process_group()
