"""The processes of a run as one of them sees them: what they add up, agree on and share out. One process alone is a world too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from anyformer.errors import UsageError
from anyformer.training.cluster.mesh import Mesh

V = TypeVar("V")
_ONE = Mesh()


@dataclass(frozen=True)
class World:
    """A process among those of its run; rank 0 writes the terminal and the run's directory. All calls are made by all."""

    rank: int = 0
    size: int = 1
    local_size: int = 1  # on its machine
    mesh: Mesh = _ONE
    group: dist.ProcessGroup | None = None  # that they speak by; None: PyTorch's default one
    is_open: bool = False  # the mesh is still to be chosen: a copy a process, unless that does not fit

    @property
    def leads(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether a process holds a part of the weights alone."""
        return self.mesh.copy > 1

    @property
    def tp(self) -> int:
        """How many processes, next to each other, compute the same tokens together."""
        return self.mesh.tp

    @property
    def cp(self) -> int:
        """How many processes, next to each other, have a stretch of the same rows each."""
        return self.mesh.cp

    @property
    def pp(self) -> int:
        """How many processes have some of the layers each, those of one stage next to each other."""
        return self.mesh.pp

    @property
    def stage(self) -> int:
        """Which of these this process is."""
        return self.rank // (self.size // self.pp)

    @property
    def readers(self) -> int:
        """How many processes, or groups of those that compute together, have rows of their own."""
        return self.size // (self.pp * self.tp * self.cp)

    @property
    def reader(self) -> int:
        """Which of the readers this process is, or is one of."""
        return self.rank % (self.size // self.pp) // (self.tp * self.cp)

    def chosen(self, fits: bool) -> World:
        """With the mesh that is left open: a copy a process where one `fits` as rank 0 sees it, else sharded over all."""
        if not self.is_open:
            return self
        return replace(self, is_open=False, mesh=self.mesh if self.told(fits) else Mesh(fsdp=self.size))

    def apart(self) -> World:
        """The same processes, speaking by a group of their own: in another thread, say, while steps go on."""
        return replace(self, group=dist.new_group(backend="gloo")) if self.size > 1 else self

    def summed(self, numbers: Tensor) -> Tensor:
        """The sums over readers and stages, in float64 on the CPU; the same bits on all. Others of one reader give the same."""
        total = numbers.detach().double().cpu()
        if self.size > 1:
            total = total.clone() if self.rank % (self.tp * self.cp) == 0 else torch.zeros_like(total)
            dist.all_reduce(total, group=self.group)
        return total

    def whole(self, numbers: Tensor) -> Tensor:
        """The sums of what each has that shares this one's rows: of whole rows, where each has a stretch."""
        if self.cp == 1:
            return numbers
        from anyformer.training.cluster.context_parallel import of_row

        total = numbers.detach().clone()
        dist.all_reduce(total, group=of_row(self))
        return total

    def largest(self, number: int) -> int:
        """The largest of what each process gives."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return int(found)

    def anywhere(self, flags: Sequence[bool], groups: Iterable[dist.ProcessGroup | None]) -> list[bool]:
        """Of each, whether it is so in any process of the groups, one after the other; None: of all."""
        if self.size == 1:
            return list(flags)
        found = torch.tensor(flags, dtype=torch.int32)
        for group in groups:
            dist.all_reduce(found, group=group)
        return [bool(n) for n in found.tolist()]

    def told(self, value: V) -> V:
        """What rank 0 gives."""
        if self.size == 1:
            return value
        held: list[Any] = [value]
        dist.broadcast_object_list(held, src=0, group=self.group)
        return held[0]

    def once(self, made: Callable[[], V]) -> V:
        """What rank 0 makes of it, which is to be found alike by all; the others wait. Raises what rank 0 does, there."""
        return self.told(made()) if self.leads else cast(V, self.told(None))

    def gathered(self, value: V) -> list[V]:
        """What each process gives, by rank."""
        if self.size == 1:
            return [value]
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value, group=self.group)
        return held

    def read(self, value: V) -> list[V]:
        """What each reader gives, in the last stage."""
        return self.gathered(value)[self.size - self.size // self.pp :: self.tp * self.cp]

    def all_weights(self, model: nn.Module) -> AbstractContextManager[object]:
        """Meanwhile a process that has a part of the weights (FSDP2's) has all, and passes of it are its own alone."""
        if not self.sharded:
            return nullcontext()
        from anyformer.training.cluster.sharding import gathered

        return gathered(model, self)

    def meet(self) -> None:
        """Wait for all."""
        if self.size > 1:
            dist.barrier(group=self.group)

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raise UsageError, on all processes, naming the first fact in which one was started otherwise than rank 0."""
        first, *others = self.gathered(dict(facts))
        for rank, theirs in enumerate(others, 1):
            for name, value in first.items():
                if theirs.get(name) != value:
                    raise UsageError(
                        f"rank {rank} has another {name} than rank 0: {theirs.get(name)} there and {value} here; start "
                        "every process with the same command, files and versions"
                    )

    def share(self, n_rows: int) -> slice:
        """The rows of a batch that are this reader's: as many as any other's, but for one."""
        each, more = divmod(n_rows, self.readers)
        start = self.reader * each + min(self.reader, more)
        return slice(start, start + each + (self.reader < more))

    def most(self, n_rows: int) -> int:
        """The most rows of a batch that a reader has."""
        return -(-n_rows // self.readers)

    def dealt(self, items: Iterable[V]) -> Iterator[tuple[V, bool]]:
        """This reader's of the items, dealt out one by one, as many as any other's; whether each counts, or makes up for one."""
        round_: list[V] = []
        for item in items:
            round_.append(item)
            if len(round_) == self.readers:
                yield round_[self.reader], True
                round_ = []
        if round_:
            yield round_[min(self.reader, len(round_) - 1)], self.reader < len(round_)

    def seed(self, *numbers: int) -> int:
        """A seed of the numbers and of which tokens and layers are this process's; that of the first is one process's."""
        which = self.rank // self.tp
        mixed = np.random.SeedSequence((*numbers, *([which] if which else []))).generate_state(1, np.uint64)[0]
        return int(mixed) >> 1


@dataclass(frozen=True)
class Group:
    """Some of the processes, as one of them sees them."""

    group: dist.ProcessGroup

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()


@cache
def groups_of(parts: tuple[Sequence[int], ...], processes: dist.ProcessGroup | None) -> dict[int, Any]:
    """By rank, the group of the ranks in its part, made once for the `processes` that are joined, by all of them."""
    found = {}
    for ranks in parts:
        found.update(dict.fromkeys(ranks, dist.new_group(ranks)))
    return found


ALONE = World()
