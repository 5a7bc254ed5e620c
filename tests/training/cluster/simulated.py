"""Ranks of one layer's parts as threads of this process, which meet at barriers: nothing of PyTorch's process groups."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

PATIENCE_SECONDS = 60.0


@dataclass
class Ring:
    """What so many threads have in common."""

    size: int
    held: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size)
        self.held = [None] * self.size


@dataclass(frozen=True, eq=False)
class Simulated:
    """One of the threads, as a `Ranks`."""

    rank: int
    ring: Ring

    @property
    def size(self) -> int:
        return self.ring.size

    def reduce(self, x: Tensor, *, largest: bool = False) -> Tensor:
        ring = self.ring
        ring.held[self.rank] = x.detach().clone()
        ring.barrier.wait(PATIENCE_SECONDS)
        every = torch.stack(ring.held)
        ring.barrier.wait(PATIENCE_SECONDS)
        with torch.no_grad():
            return x.copy_(every.amax(0) if largest else every.sum(0))


def together(size: int, work: Callable[[Simulated], Any]) -> list[Any]:
    """What each rank makes of it, by rank; the first error of any is raised."""
    ring, found, errors = Ring(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            found[rank] = work(Simulated(rank, ring))
        except BaseException as error:  # so that none waits for it
            errors.append(error)
            ring.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return found
