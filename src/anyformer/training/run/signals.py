"""SIGINT and SIGTERM, taken between two steps: save, then stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from anyformer.errors import RunFailed


class Stopped(RunFailed):
    """A signal ended the run; the exit status is 128 plus its number, as a shell has it."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_status = 128 + number


class Signals:
    """While it is entered, the first SIGINT or SIGTERM is only noted in `received`; the second acts as it always did.

    Outside the main thread Python gives no signals, and nothing changes.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *raised: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()

    def _restore(self) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._former.clear()
