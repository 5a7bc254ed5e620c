"""Joining the processes that torchrun started, and leaving them: whichever fails, all end, and one of them says why."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from anyformer.errors import AnyformerError, RunFailed, UsageError, first_line
from anyformer.training.cluster.mesh import AUTO, Mesh, parse
from anyformer.training.cluster.world import ALONE, World

JOIN_SECONDS = 600.0  # until all processes are there: machines start at different times
LIMIT_SECONDS = 1800.0  # that processes wait for one another, PyTorch's own
STRANGER_SECONDS = 10.0  # in which what listens where processes meet answers as one of them would
PATIENCE_SECONDS = 1.5  # in which processes that still live say so
_LOOK_SECONDS = 0.5  # between looks at whether another process has ended the run
_ENDED, _MET, _LOST = "ended", "met", "lost"  # keys of the store; the last two of each rank
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_PEERS = re.compile(r"gloo|connection|timed out|nccl|socket|store|broken pipe|process group", re.IGNORECASE)


def started() -> int:
    """How many processes torchrun has started for this run; 0: it was not torchrun that started this one. Raises UsageError."""
    return _told("WORLD_SIZE") if {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() else 0


def _told(name: str, otherwise: int = 0) -> int:
    """The number that the environment has by a name. Raises UsageError where it is none."""
    said = os.environ.get(name, str(otherwise))
    if not said.isdecimal():
        raise UsageError(
            f"{name}={said!r} in the environment is no number of 0 or more; start with torchrun, which sets it"
        )
    return int(said)


@contextmanager
def joined(mesh: str | None = None, limit: float = LIMIT_SECONDS) -> Iterator[World]:
    """The processes that torchrun's environment tells of, joined on `mesh` (None, "auto": the one that suits); or this one alone.

    While it is entered, rank 0 alone writes the terminal, a process that waits longer than `limit` seconds for another fails,
    and where one fails all end: the error is raised in one of them, the others leave by SystemExit with its status. On Linux a
    process ends with the one that started it. Raises UsageError for a mesh of another number of processes, or an environment that
    makes no sense.
    """
    size = started()
    if not size:
        if mesh not in (None, AUTO):
            parse(mesh, 1)
        yield ALONE
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent(os.getppid(), signal.SIGKILL)
    rank, local, here, port = _told("RANK"), _told("LOCAL_RANK"), _told("LOCAL_WORLD_SIZE", size), _told("MASTER_PORT")
    if rank >= size:
        raise UsageError(f"RANK={rank} in the environment is beyond WORLD_SIZE={size}; ranks are counted from 0")
    if rank and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        _wait_for_a_store(os.environ["MASTER_ADDR"], port)
    try:
        tcp, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS)))
    except (dist.DistError, RuntimeError, ValueError) as error:
        at = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT')}"
        if "EADDRINUSE" in str(error):
            why = "address already in use; end what listens there, or give all processes another MASTER_PORT"
            raise UsageError(f"rank {rank} cannot listen at {at}: {why}") from None
        raise UsageError(f"rank {rank} cannot reach the others at {at}: {first_line(error)}") from None
    store = dist.PrefixStore(f"anyformer/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", tcp)
    members = _Members(store, rank, size, limit)
    with members.ending_together(), _muted() if rank else nullcontext():
        members.meet()
        # With the store alone they have waited for the slowest, so that the limit can be short from here on.
        if cuda := torch.cuda.is_available():
            torch.cuda.set_device(local)
        backend, wait = "cpu:gloo,cuda:nccl" if cuda else "gloo", timedelta(seconds=limit)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
        try:
            is_open = mesh in (None, AUTO)
            yield World(rank, size, here, Mesh(dp=size) if is_open else parse(mesh, size), is_open=is_open)
        finally:
            dist.destroy_process_group()


def _wait_for_a_store(host: str, port: int) -> None:
    """Return when rank 0 listens there, or nobody does for a long time; leave where somebody else does, as rank 0 says.

    PyTorch's client waits without end for an answer of whoever took its connection.
    """
    found = threading.Event()

    def ask() -> None:
        with suppress(dist.DistError, RuntimeError):
            dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=JOIN_SECONDS))
        found.set()

    threading.Thread(target=ask, daemon=True).start()
    answers = 0
    while not found.wait(_LOOK_SECONDS):
        try:
            socket.create_connection((host, port), _LOOK_SECONDS).close()
        except OSError:
            answers = 0
            continue
        answers += 1
        if answers * _LOOK_SECONDS >= STRANGER_SECONDS:
            raise SystemExit(2)


@contextmanager
def _muted() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@dataclass
class _Members:
    """What processes tell each other beside the run, through the store that the launcher holds."""

    store: dist.PrefixStore
    rank: int
    size: int
    limit: float
    left: threading.Event = field(default_factory=threading.Event)

    def meet(self) -> None:
        """Wait until every process is there. Raises RunFailed naming those that are not."""
        self.store.set(f"{_MET}/{self.rank}", "here")
        try:
            self.store.wait([f"{_MET}/{rank}" for rank in range(self.size)], timedelta(seconds=JOIN_SECONDS))
        except (dist.DistError, RuntimeError):
            raise RunFailed(f"{self._who(_MET)} did not start within {JOIN_SECONDS:.0f} s; start all again") from None

    @contextmanager
    def ending_together(self) -> Iterator[None]:
        watch = threading.Thread(target=self._end_with_the_others, daemon=True)
        watch.start()
        main = threading.current_thread() is threading.main_thread()
        former = signal.signal(signal.SIGTERM, _told_to_leave) if main else None
        try:
            yield
        except BaseException as error:
            if main:
                signal.signal(signal.SIGTERM, former := signal.SIG_IGN)  # to the end: it leaves, and says why
            self.left.set()
            watch.join()
            self._leave(error)
        finally:
            self.left.set()
            watch.join()
            if main:
                signal.signal(signal.SIGTERM, former or signal.SIG_DFL)

    def _leave(self, error: BaseException) -> None:
        """Raise the error of the run: where this process is the first, its own, else SystemExit with the status of that."""
        try:
            mine, status = self._failure(error)
            said = json.dumps({"rank": self.rank, "status": status})
            first = json.loads(self.store.compare_set(_ENDED, "", said))
        except (dist.DistError, RuntimeError):
            # The store is gone with its machine: of each other one, one process says so.
            if int(os.environ.get("LOCAL_RANK", 0)):
                raise SystemExit(1) from None
            raise RunFailed(
                f"the machine where all processes meet ({os.environ.get('MASTER_ADDR')}) is gone; all {self.size} processes end; "
                "the same command goes on from the last checkpoint"
            ) from None
        if first["rank"] != self.rank:
            raise SystemExit(first["status"]) from None
        raise mine from (None if mine is not error else error.__cause__)

    def _failure(self, error: BaseException) -> tuple[BaseException, int]:
        """(the error to show, its exit status): of a process that lost another, which one that is."""
        if isinstance(error, AnyformerError):
            return error, error.exit_status
        if isinstance(error, KeyboardInterrupt):
            return error, 128 + signal.SIGINT
        if isinstance(error, SystemExit):
            return error, error.code if isinstance(error.code, int) else 1
        if not (isinstance(error, RuntimeError) and (isinstance(error, dist.DistError) or _PEERS.search(str(error)))):
            return error, 1
        self.store.set(f"{_LOST}/{self.rank}", "another")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and not self.store.check([_ENDED]):
            time.sleep(0.05)
        slow = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        what = f"has not answered for {self.limit:g} s (--time-limit)" if slow else "is gone"
        lost = RunFailed(
            f"{self._who(_LOST)} {what}; all {self.size} processes end; the same command goes on from the last checkpoint"
        )
        return lost, lost.exit_status

    def _who(self, key: str) -> str:
        """The ranks that have not set their key, in words."""
        absent = [str(rank) for rank in range(self.size) if not self.store.check([f"{key}/{rank}"])]
        return f"rank{'s' * (len(absent) > 1)} {', '.join(absent)}" if absent else "a rank"

    def _end_with_the_others(self) -> None:
        """End this process where another has ended the run, and it does not see that by itself: it waits, or hangs."""
        store: dist.Store = self.store.clone()  # type: ignore[attr-defined]  # a connection of its own
        try:
            while not self.left.wait(_LOOK_SECONDS):
                if store.check([_ENDED]):
                    status = json.loads(store.get(_ENDED))["status"]
                    if not self.left.wait(2 * PATIENCE_SECONDS):
                        os._exit(status)
        except (dist.DistError, RuntimeError):
            return  # the launcher is gone, and this process goes with it


def _told_to_leave(number: int, _: object) -> None:
    """Leave, but where an error has the process leave already: the launcher tells the others so at once, and it is to say why."""
    if sys.exception() is None:
        raise SystemExit(128 + number)


def end_with_parent(parent: int, number: int) -> None:
    """Have Linux send this process a signal when its parent dies, which could not stop it any more."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, number)
    if os.getppid() != parent:  # it died before it was asked
        os._exit(1)
