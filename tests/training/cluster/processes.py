"""Processes that train together in a test: started once for a file of tests, and forked, so that none pays for importing.

What forks them has computed nothing: PyTorch built for CUDA refuses a backward pass in a process whose parent has made one.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # the first optimiser step imports it, in every process that was forked without it
import torch.distributed.fsdp
import torch.distributed.tensor

from anyformer.training.cluster.joining import joined
from anyformer.training.cluster.world import World

PATIENCE_SECONDS = 90.0
Work = Callable[..., Any]  # of a World and arguments


class Processes:
    """So many ranks of one group, each waiting for work."""

    def __init__(self, n: int) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.training.cluster.steps", "tests.training.killing"])
        self.ends, self.processes = [], []
        for rank in range(n):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, n, port), daemon=True)
            process.start()
            self.ends.append(mine)
            self.processes.append(process)

    def __call__(self, work: Work, *given: Any) -> list[Any]:
        """What each rank makes of it, by rank; fails where one does, or takes too long."""
        for end in self.ends:
            end.send((work, given))
        found = []
        for rank, end in enumerate(self.ends):
            assert end.poll(PATIENCE_SECONDS), f"rank {rank} hangs"
            ok, value = end.recv()
            assert ok, f"rank {rank}:\n{value}"
            found.append(value)
        return found

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@contextmanager
def processes(n: int) -> Iterator[Processes]:
    pool = Processes(n)
    try:
        yield pool
    finally:
        pool.end()


def _serve(end: Connection, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    values = (rank, rank, size, size, "localhost", port)
    os.environ.update({name: str(value) for name, value in zip(names, values, strict=True)})
    with joined() as world:
        while True:
            work, given = end.recv()
            end.send(_answer(work, world, given))


def _answer(work: Work, world: World, given: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, work(world, *given)
    except BaseException:
        return False, traceback.format_exc()
