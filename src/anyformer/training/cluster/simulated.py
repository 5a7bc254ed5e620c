"""A training step of any size without numbers: what one of its processes holds, and what it sends.

The step is the one that runs, on tensors that have shapes and no memory, in one process that PyTorch's fake process group tells
it is one of many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.errors import UsageError
from anyformer.model import Transformer
from anyformer.observation.passes import given_by, loss_of
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.training.cluster.context_parallel import of_row, stretch_rows
from anyformer.training.cluster.expert_parallel import GroupTravel, experts_of
from anyformer.training.cluster.gradients import add_gradients
from anyformer.training.cluster.mesh import Mesh
from anyformer.training.cluster.parts import here
from anyformer.training.cluster.refusals import refuse_on_mesh
from anyformer.training.cluster.sharding import device_mesh, expert_mesh, last_of_step, outline
from anyformer.training.cluster.traffic import ACTIVATIONS, GRADIENTS, Traffic, TrainingStep
from anyformer.training.cluster.world import World

TRAVEL, SEND, RECEIVE = "all-to-all", "send", "receive"
CPU = torch.device("cpu")
# c10d's operators: what they are called here, which argument has the bytes of the whole, and which says among whom.
KINDS = {
    "_allgather_base_": ("all-gather", 0, 2),
    "allgather_": ("all-gather", 0, 2),
    "_reduce_scatter_base_": ("reduce-scatter", 1, 2),
    "reduce_scatter_": ("reduce-scatter", 1, 2),
    "allreduce_": ("all-reduce", 0, 1),
    "alltoall_base_": (TRAVEL, 1, 2),
    "send": (SEND, 0, 1),
    "recv_": (RECEIVE, 0, 1),
}


class LocalWeight(NamedTuple):
    """What a process has of a weight."""

    whole: tuple[int, ...]
    here: tuple[int, ...]
    split: Mapping[str, int]  # by axis of the mesh, which dimension is cut over it


@dataclass(frozen=True)
class Simulated:
    """A process's: weights by name, and what it sends in a step."""

    weights: Mapping[str, LocalWeight]
    traffic: Traffic


def simulated(spec: ModelSpec, mesh: Mesh, step: TrainingStep, stage: int = 0) -> Simulated:
    """A step in float32 as the first process of a stage makes it, predicting token by token; experts are loaded evenly.

    What the stages before give comes from their own passes. Raises UsageError or SpecError where the mesh cannot train the
    architecture, and inside a run of several processes.
    """
    if dist.is_initialized():
        raise UsageError("a step of several processes is simulated in one; start it without torchrun")
    carried: tuple[Tensor, ...] = ()
    fake, first = FakeTensorMode(allow_non_fake_inputs=True), _Pretended(0, mesh.processes, mesh=mesh)
    refuse_on_mesh(spec, Recipe(tokens=step.seq_len, batch_tokens=step.seq_len, seq_len=step.seq_len), first)
    for number in range(stage):
        with _pretended(replace(first, rank=number * (mesh.processes // mesh.pp))) as world:
            model = outline(spec, CPU, world)
            with fake:
                carried = _Parts(model.to_empty(device=CPU), world, step, carried).given()
    with _pretended(replace(first, rank=stage * (mesh.processes // mesh.pp))) as world:
        model = outline(spec, CPU, world)
        weights = {name: _held(p) for name, p in model.named_parameters()}
        with fake:
            parts = _Parts(model.to_empty(device=CPU), world, step, carried).sent(min(step.micro_batches, 2))
    # Of several parts of a batch the first sends what each but the last does.
    first_part, last = parts[0], parts[-1]
    traffic = {key: (step.micro_batches - 1) * first_part[key] + last[key] for key in {**first_part, **last}}
    return Simulated(weights, traffic)


class _Parts:
    """The parts of a batch as a process computes them, of tokens that are all alike."""

    def __init__(self, model: Transformer, world: World, step: TrainingStep, carried: Sequence[Tensor]) -> None:
        stretch_rows(model, world)
        for experts in experts_of(model):
            if isinstance(travel := experts.elsewhere, GroupTravel):
                experts.elsewhere = _Even(travel.group, travel.n_experts)
        model.recompute, model.runs_on = step.recompute, step.device
        self.model, self.world, self.carried = model, world, carried
        lengths = (step.seq_len, step.source_len or step.seq_len)
        self.ids, self.sources = (torch.zeros(step.micro_batch, n, dtype=torch.long) for n in lengths)

    def given(self) -> tuple[Tensor, ...]:
        """What a stage that is not the last gives."""
        return given_by(self.model, self.ids, self.sources, carried=self.carried).carried

    def sent(self, n: int) -> list[Counter[tuple[str, str]]]:
        """What each of n parts sends."""
        found = []
        for i in range(n):
            last_of_step(self.model, i == n - 1)
            with TrafficCounter(self.world) as watch:
                self._pass()
                if i == n - 1:
                    add_gradients(self.model, [*self.model.parameters()], self.world)
            found.append(watch.sent)
        return found

    def _pass(self) -> None:
        stage = self.model.stack.stage
        if stage is None:
            loss_of(self.model, self.ids, self.sources).backward()
            return
        group = device_mesh(CPU, self.world)["pp"].get_group()
        taken = [x.detach().requires_grad_(x.requires_grad) for x in self.carried]
        if stage.last:
            loss_of(self.model, self.ids, self.sources, carried=taken).backward()
        else:
            given = given_by(self.model, self.ids, self.sources, carried=taken).carried
            _send(given, stage.number + 1, group)
            learnt = [x for x in given if x.requires_grad]
            torch.autograd.backward(learnt, [torch.zeros_like(x) for x in learnt])
        if not stage.first:
            grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in taken if x.requires_grad]
            _send(grads, stage.number - 1, group)


def _send(tensors: Iterable[Tensor], to: int, group: dist.ProcessGroup) -> None:
    """As PyTorch's stages do: one by one to the stage of that number."""
    for x in tensors:
        dist.send(x.detach().contiguous(), group=group, group_dst=to)


def _held(parameter: Tensor) -> LocalWeight:
    mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
    names = () if mesh is None else mesh.mesh_dim_names
    split: dict[str, int] = {
        name: each.dim for name, each in zip(names, placements, strict=True) if hasattr(each, "dim")
    }
    return LocalWeight(tuple(parameter.shape), tuple(here(parameter).shape), split)


class _Pretended(World):
    """The processes of a step that is simulated: what they tell each other beside it is alike in all."""

    def anywhere(self, flags: Sequence[bool], groups: Any) -> list[bool]:
        return list(flags)


class _Even(GroupTravel):
    """Experts that are all chosen as often, whatever the router says."""

    def loads(self, expert: Tensor) -> tuple[list[int], list[int]]:
        counts, ones = torch.zeros(self.size, dtype=torch.long), [1] * self.size
        self.exchange(counts, ones, ones)
        each, more = divmod(len(expert), self.size)
        even = [each + (i < more) for i in range(self.size)]
        return even, even


class TrafficCounter(TorchDispatchMode):
    """Adds up the bytes of the collectives that run within, by axis of the world's mesh and kind."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.axes, self.sent = world, _axes(world), Counter[tuple[str, str]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind, whole, among = KINDS[func.overloadpacket.__name__]
            group = dist.ProcessGroup.unbox(args[among])
            if group.size() > 1 and kind != RECEIVE:
                axis = "ep" if kind == TRAVEL else self._axis(group)
                if axis == "pp" and kind == SEND:
                    kind = ACTIVATIONS if args[2] > group.rank() else GRADIENTS
                self.sent[axis, kind] += _nbytes(args[whole])
        return func(*args, **(kwargs or {}))

    def _axis(self, group: dist.ProcessGroup) -> str:
        """That of a group; of one that is none of the mesh's, the stages that have a weight, or else the copies."""
        each = self.world.size // self.world.pp
        stages = {rank // each for rank in dist.get_process_group_ranks(group)}
        return self.axes.get(group.group_name, "pp" if len(stages) > 1 else "dp")


def _axes(world: World) -> dict[str, str]:
    """The axis of each group of processes of the mesh by its name."""
    axes = {}
    if world.mesh.ep > 1:
        axes[expert_mesh(CPU, world)["fsdp"].get_group().group_name] = "fsdp"
    if world.sharded:
        axes |= {device_mesh(CPU, world)[axis].get_group().group_name: axis for axis in ("pp", "dp", "fsdp", "tp")}
    if world.cp > 1:
        axes[of_row(world).group_name] = "cp"
    return axes


def _nbytes(given: Any) -> int:
    return given.nbytes if isinstance(given, Tensor) else sum(map(_nbytes, given))


@contextmanager
def _pretended(world: World) -> Iterator[World]:
    """PyTorch's word that this process is that one of so many."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=world.rank, world_size=world.size)
    try:
        yield world
    finally:
        dist.destroy_process_group()
