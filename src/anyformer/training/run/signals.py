"""SIGINT and SIGTERM, taken between two steps: save, then stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from anyformer.errors import RunFailed


class Stopped(RunFailed):
    """A signal ended the run; the exit status is 128 plus its number, as a shell has it."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_status = 128 + number


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """While it is entered, the first SIGINT or SIGTERM is only noted in the list; the second acts as it always did.

    Outside the main thread Python gives no signals, and nothing changes.
    """
    received: list[int] = []
    former: dict[int, Any] = {}

    def restore() -> None:
        while former:
            signal.signal(*former.popitem())

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            former[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        restore()
