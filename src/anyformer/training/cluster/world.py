"""The processes of a run as one of them sees them: what they add up, agree on and share out. One process alone is a world too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from anyformer.errors import UsageError
from anyformer.training.cluster.mesh import Mesh

BUCKET_NBYTES = 25 << 20  # of gradients reduced at once: large enough to be bound by bandwidth, small beside the model
V = TypeVar("V")
_ONE = Mesh()


@dataclass(frozen=True)
class World:
    """A process among those of its run; rank 0 writes the terminal and the run's directory. All calls are made by all."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on its machine
    local_size: int = 1
    mesh: Mesh | None = _ONE  # None: still to be chosen

    @property
    def leads(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether a process holds a part of the weights alone."""
        return self.mesh is not None and self.mesh.fsdp > 1

    def chosen(self, fits: bool) -> World:
        """With the mesh that is left open: a copy a process where one `fits` as rank 0 sees it, else sharded over all."""
        if self.mesh is not None:
            return self
        return replace(self, mesh=Mesh(dp=self.size) if self.told(fits) else Mesh(fsdp=self.size))

    def summed(self, numbers: Tensor) -> Tensor:
        """The sums over processes, in float64 on the CPU; the same bits on all."""
        total = numbers.detach().double().cpu()
        if self.size > 1:
            total = total.clone()
            dist.all_reduce(total)
        return total

    def largest(self, number: int) -> int:
        """The largest of what each process gives."""
        if self.size == 1:
            return number
        found = torch.tensor(number)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def told(self, value: V) -> V:
        """What rank 0 gives."""
        if self.size == 1:
            return value
        held: list[Any] = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def gathered(self, value: V) -> list[V]:
        """What each process gives, by rank."""
        if self.size == 1:
            return [value]
        held: list[Any] = [None] * self.size
        dist.all_gather_object(held, value)
        return held

    def meet(self) -> None:
        """Wait for all."""
        if self.size > 1:
            dist.barrier()

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
        """The rows of a batch that are this process's: as many as any other's, but for one."""
        each, more = divmod(n_rows, self.size)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    def most(self, n_rows: int) -> int:
        """The most rows of a batch that a process has."""
        return -(-n_rows // self.size)

    def dealt(self, items: Iterable[V]) -> Iterator[tuple[V, bool]]:
        """This process's of the items, dealt out one by one, as many as any other's; whether each counts, or makes up for one."""
        round_: list[V] = []
        for item in items:
            round_.append(item)
            if len(round_) == self.size:
                yield round_[self.rank], True
                round_ = []
        if round_:
            yield round_[min(self.rank, len(round_) - 1)], self.rank < len(round_)

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give each parameter the sum of its gradients over all processes, where it is not sharded.

        One flat reduction a bucket; a parameter that has a gradient nowhere keeps none, so that nothing decays it.
        """
        if self.size == 1 or self.sharded:
            return
        has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        dist.all_reduce(has)
        held = []
        for p, n in zip(parameters, has.tolist(), strict=True):
            if n:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                held.append(p.grad)
        for bucket in _buckets(held):
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            for grad, reduced in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(reduced.view_as(grad))

    def seed(self, *numbers: int) -> int:
        """A seed of the numbers and the rank; that of rank 0 is one process's."""
        mixed = np.random.SeedSequence((*numbers, *([self.rank] if self.rank else []))).generate_state(1, np.uint64)[0]
        return int(mixed >> 1)


ALONE = World()


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
