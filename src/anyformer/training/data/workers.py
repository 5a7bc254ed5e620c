"""Rows prepared ahead of the step, by processes of their own: the same rows in the same order, however many there are.

Worker w of n prepares the batches w, w + n, … by a copy of the feed. What is left of the feed here follows the batches that
were taken, so that a checkpoint knows nothing of those prepared in vain.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Generator
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from anyformer.errors import AnyformerError, RunFailed, UsageError
from anyformer.text.ahead import leave_signals_to_the_run
from anyformer.training.data.feed import Feed, Rows

_OF_TOKENIZERS = "TOKENIZERS_PARALLELISM"  # unset, the library prints a warning into every process that is forked
_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) ([^.\n]+)")  # how PyTorch's message begins


@contextmanager
def prepared(feed: Feed, workers: int) -> Iterator[Feed | Iterator[Rows]]:
    """The batches of a feed, prepared by so many processes, which end with the context; 0: by none, when asked.

    `feed` goes on with every batch taken. The processes are forked, so that they share what the feed holds: enter this before
    other threads are started. Raises RunFailed when one of them dies.
    """
    if not workers:
        yield feed
        return
    # A generator of its own: the loader would draw from the global one, and a run with workers be another run.
    with warnings.catch_warnings(), _quiet_tokenizers():
        warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)  # what threads there are rest
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # more than there are cores
        loader = DataLoader(
            _Stream(feed),
            batch_size=None,
            num_workers=workers,
            collate_fn=lambda rows: rows,
            worker_init_fn=lambda _: leave_signals_to_the_run(),
            multiprocessing_context="fork",
            generator=Generator(),
        )
        ahead: Any = iter(loader)
    try:
        yield _taken(ahead, feed)
    except RuntimeError as error:  # PyTorch raises it in the middle of whatever the main thread does
        died = _DIED.match(str(error))
        if died is None:
            raise
        raise RunFailed(
            f"process {died[1]}, which prepares rows, {died[2]}; start again with fewer --workers, or none"
        ) from error
    finally:
        ahead._shutdown_workers()  # now: left to the collector, they would live on in a traceback


def _taken(ahead: Iterator[Rows | AnyformerError], feed: Feed) -> Iterator[Rows]:
    for rows in ahead:
        if isinstance(rows, AnyformerError):
            raise rows
        feed.skip(1)
        yield rows


def check_workers(workers: int) -> None:
    """Raise UsageError for a number of processes that cannot be."""
    if workers < 0:
        raise UsageError(f"workers={workers} is no number of processes; give 0 or more")
    if workers and sys.platform != "linux":
        raise UsageError(f"--workers needs processes that can be forked, which {sys.platform} has not; leave it out")


class _Stream(IterableDataset):
    """The batches that one worker prepares."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def __iter__(self) -> Iterator[Rows]:
        worker = get_worker_info()
        assert worker is not None
        self._feed.skip(worker.id)
        while True:
            try:
                rows = next(self._feed)
            except AnyformerError as error:  # raised, it would arrive with the worker's traceback in its message
                yield error
                return
            yield rows
            self._feed.skip(worker.num_workers - 1)


@contextmanager
def _quiet_tokenizers() -> Iterator[None]:
    if _OF_TOKENIZERS in os.environ:
        yield
        return
    os.environ[_OF_TOKENIZERS] = "false"
    try:
        yield
    finally:
        del os.environ[_OF_TOKENIZERS]
