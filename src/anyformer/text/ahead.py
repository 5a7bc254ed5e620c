"""Encoding by several processes: the ids of parts of texts, in the order of the parts."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process

import numpy as np

from anyformer.errors import RunFailed
from anyformer.text.pieces import Part, ids_of
from anyformer.text.tokenizer import Tokenizer

LARGE = 32_000_000  # bytes of text that one process encodes in the time that others need to start, many times over
_LOT = 1 << 19  # characters that a process encodes before it answers
_AHEAD = 3  # lots for each process that are under way

_own: Tokenizer  # of a process that encodes


def processes_for(nbytes: int) -> int:
    """How many processes encode so much text: as many as there are cores, or the one that asks."""
    if nbytes < LARGE or sys.platform != "linux":
        return 0
    cores = len(os.sched_getaffinity(0))
    return cores if cores > 1 else 0


def encoded_ahead(
    tokenizer: Tokenizer, parts: Iterable[tuple[int, Part]], processes: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(the number that came with a part, its ids), for each part in turn, by so many processes; 0: by none beside this one.

    They are forked, read nothing, and hold a few megabytes of text each. Raises RunFailed when one of them dies.
    """
    if not processes:
        yield from ((number, ids_of(tokenizer, part)) for number, part in parts)
        return
    _ = tokenizer.fast, tokenizer.dtype  # made here, they are shared
    pool = ProcessPoolExecutor(processes, get_context("fork"), _begin, (tokenizer,))
    under_way: deque[tuple[list[int], Future[list[np.ndarray]]]] = deque()
    try:
        for numbers, texts in _lots(parts):
            with warnings.catch_warnings():  # what threads there are rest when the first lot has the pool fork
                warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)
                under_way.append((numbers, pool.submit(_encoded, texts)))
            if len(under_way) > _AHEAD * processes:
                yield from _answer(*under_way.popleft())
        while under_way:
            yield from _answer(*under_way.popleft())
    except BrokenProcessPool:
        _end(pool)
        raise RunFailed(
            "a process that encodes text has been killed, perhaps for want of memory; the same command goes on from there"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end(pool: ProcessPoolExecutor) -> None:
    """End what is left of a broken pool, which waits for its processes for ever, as they heed no SIGTERM; and, on some Pythons,
    for what it still writes to them (gh-94777), which is read here. To close its end instead, while it does, can hang it too."""
    for process in [*pool._processes.values()]:
        process.kill()
    with suppress(OSError):
        own = os.dup(pool._call_queue._reader.fileno())  # type: ignore[attr-defined]
        threading.Thread(target=_drain, args=(own,), daemon=True).start()


def _drain(descriptor: int) -> None:
    """Read a pipe until nobody writes to it, and close this end."""
    with suppress(OSError), open(descriptor, "rb", buffering=0) as pipe:
        while pipe.read(1 << 16):
            pass


def leave_signals_to_the_run() -> None:
    """Let Ctrl-C and SIGTERM, which may reach all processes, stop the run alone; and end with its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _begin(tokenizer: Tokenizer) -> None:
    global _own
    _own = tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # unset, the library warns of the fork
    leave_signals_to_the_run()


def _end_with_the_run() -> None:
    """End this process when the one that started it has been killed, also while it waits for it."""
    run = parent_process()
    assert run is not None
    connection.wait([run.sentinel])
    os._exit(1)


def _lots(parts: Iterable[tuple[int, Part]]) -> Iterator[tuple[list[int], list[Part]]]:
    """The parts, some together: a lot of short ones, or a long one."""
    numbers: list[int] = []
    texts: list[Part] = []
    size = 0
    for number, part in parts:
        numbers.append(number)
        texts.append(part)
        size += len(part)
        if size >= _LOT:
            yield numbers, texts
            numbers, texts, size = [], [], 0
    if numbers:
        yield numbers, texts


def _encoded(parts: Sequence[Part]) -> list[np.ndarray]:
    return [ids_of(_own, part) for part in parts]


def _answer(numbers: list[int], answer: Future[list[np.ndarray]]) -> Iterator[tuple[int, np.ndarray]]:
    return zip(numbers, answer.result(), strict=True)
