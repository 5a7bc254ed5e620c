"""Runs a command on an input in a forked process, with limits on time and memory, and says how that ended.

Importing PyTorch takes seconds. So one process imports everything and forks a child for each input: an input costs what the
command itself does, and whatever it leaves behind in memory dies with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import multiprocessing
import os
import pkgutil
import resource
import runpy
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import click.utils

MOST_PRINTED = 4 << 20  # bytes of a stream that are read back
MOST_WRITTEN = 64 << 20  # bytes of any file
CLOSED = "closed"  # stdout, as `>&-` leaves it
UNREAD = "unread"  # stdout into a pipe that nobody reads any longer, as `| head -1` leaves it

# What decides how a command runs and is not what is tried.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "ANYFORMER_NO_CACHE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Limits:
    """The most that an input may take: beyond the memory of the process that forks, and of processor time."""

    memory_nbytes: int = 500 << 20
    cpu_seconds: int = 10
    wall_seconds: float = 120.0


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    status: int  # below 0: minus the signal that ended it
    out: str
    errors: str
    cpu_seconds: float
    memory_nbytes: int  # the peak above that of a child that does nothing
    timed_out: bool = False


@dataclass
class Arena:
    """A process that has imported everything, and forks; what commands keep for later goes below `root`, not to the user's."""

    root: Path
    limits: Limits = field(default_factory=Limits)
    around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext  # what the command runs in
    _idle_nbytes: int = 0

    def __post_init__(self) -> None:
        """Import all that any command would."""
        os.environ.update(SURROUNDINGS, ANYFORMER_CACHE=str(self.root / "cache"))
        import anyformer

        for module in pkgutil.walk_packages(anyformer.__path__, "anyformer."):
            # lm-eval is of an extra, Triton of PyTorch for GPUs
            if not module.name.endswith(("__main__", "lm_evaluation", "layers.vectors")):
                importlib.import_module(module.name)
        self._warm_up()
        gc.collect()
        with contextlib.suppress(AttributeError):  # of another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)  # or a child fills what was freed here, and seems to need nothing
        gc.freeze()
        self._idle_nbytes = 0
        self._idle_nbytes = self.run(("--version",), Path.cwd()).memory_nbytes

    def _warm_up(self) -> None:
        """Import what commands import only when they run, as a child says that ran some.

        Here they are not run: PyTorch that is built for CUDA refuses a backward pass in a process whose parent has made one.
        """
        context = multiprocessing.get_context("fork")
        mine, theirs = context.Pipe()
        child = context.Process(target=_tell_imports, args=(theirs,))
        child.start()
        theirs.close()
        names: list[str] = mine.recv()
        child.join()
        shutil.rmtree(self.root / "cache" / "encoded", ignore_errors=True)
        for name in (*names, "rich.table", "rich.console", "rich.markup", "yaml", "gguf", "torch.utils.checkpoint"):
            with contextlib.suppress(ImportError):  # some are made, by PyTorch, and no files
                importlib.import_module(name)

    def run(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str | None] | None = None,
        stdout: str = "utf-8",
        typed: bytes = b"",
        limits: Limits | None = None,
    ) -> Ending:
        """Run `anyformer ARGUMENTS` in `folder`; `stdout` is an encoding, CLOSED or UNREAD, `typed` is read from stdin."""
        limits = limits or self.limits
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
            given.write(typed)
            given.seek(0)
            child = os.fork()
            if child == 0:
                try:
                    files = given.fileno(), out.fileno(), errors.fileno()
                    _run(arguments, folder, environment or {}, stdout, limits, files, self.around)
                finally:
                    os._exit(99)
            status, used, timed_out = _wait(child, limits.wall_seconds)
            return Ending(
                status,
                _text(out.fileno(), "utf-8" if stdout in (CLOSED, UNREAD) else stdout),
                _text(errors.fileno(), "utf-8"),
                used.ru_utime + used.ru_stime,
                max(0, used.ru_maxrss * 1024 - self._idle_nbytes),
                timed_out,
            )


def _tell_imports(end: Connection) -> None:
    """Run commands in this process, and send the names of the modules that are there then."""
    from anyformer import dumps, preset, shrink
    from anyformer.cli.main import main

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file = Path(folder, "tiny.yaml")
        file.write_text(dumps(shrink(preset("gpt2"))), encoding="utf-8")
        text = str(file.with_suffix(".txt"))
        Path(text).write_text(file.read_text("utf-8"), encoding="utf-8")
        tiny, dry = (
            str(file),
            ("--dry-run", "--device=cpu", "--vocab=300", "--seq-len=16", "--batch-tokens=16", "--tokens=64"),
        )
        for words in (
            ("cost", tiny, "--seq-len", "8"),
            ("check", tiny, "--json"),
            ("diff", tiny, "llama2-7b", "--json"),
            ("plan", tiny, "--hardware", "H100", "--seq-len", "8"),
            ("runs", folder),
            # Measures how fast this machine multiplies, once for all inputs.
            ("train", tiny, "--data", text, "--out", f"{folder}/out", *dry),
        ):
            status: Any = 0
            try:
                main(list(words), "anyformer")
            except SystemExit as ended:
                status = ended.code
            assert not status, words
    end.send(sorted(sys.modules))


def _wait(child: int, seconds: float) -> tuple[int, resource.struct_rusage, bool]:
    """(status, what it used, whether it had to be ended) of a child, when it has ended."""
    handle = os.pidfd_open(child)
    try:
        timed_out = not select.select([handle], [], [], seconds)[0]
    finally:
        os.close(handle)
    if timed_out:
        os.kill(child, signal.SIGKILL)
    _, waited, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(waited), used, timed_out


def _text(file: int, encoding: str) -> str:
    return os.pread(file, MOST_PRINTED, 0).decode(encoding, errors="replace")


def _run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str | None],
    stdout: str,
    limits: Limits,
    files: tuple[int, int, int],
    around: Callable[[], AbstractContextManager[None]],
) -> NoReturn:
    """What the child does: put everything as a shell would, run the command, and end as Python does."""
    given, out, errors = files
    os.chdir(folder)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.dup2(given, 0)
    os.dup2(errors, 2)
    if stdout == UNREAD:
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    elif stdout == CLOSED:
        os.close(1)
    else:
        os.dup2(out, 1)
    encoding = "utf-8" if stdout in (CLOSED, UNREAD) else stdout
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, closefd=False) if stdout != CLOSED else None  # type: ignore[assignment]  # noqa: SIM115
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.argv = ["anyformer", *arguments]
    click.utils.should_strip_ansi = lambda *_, **__: False  # as on a terminal: what steers one is to be seen here
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    room = mapped + 2 * limits.memory_nbytes + (512 << 20)  # address space is asked for far ahead of what is used
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * limits.cpu_seconds, 2 * limits.cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, MOST_WRITTEN))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with around():
        status = _status()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            status = 120  # as Python's own
    os._exit(status)


def _status() -> int:
    """The status with which `python -m anyformer` ends."""
    try:
        runpy.run_module("anyformer", run_name="__main__")
        return 0
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)  # noqa: T201
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def scratch() -> Path:
    """A new folder for inputs: in memory where there is one, since files are copied for each input."""
    fast = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="hostile-", dir=fast if os.access(fast, os.W_OK) else None))


def seconds() -> float:
    """Now, for differences."""
    return time.monotonic()
