"""Checkpoints written while training goes on: a thread that copies all that is in one, then writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import torch
from torch import Tensor

from anyformer.training.checkpoint.checkpoints import CheckpointContent


class Behind:
    """Writes one checkpoint at a time, behind the steps. Its memory, a checkpoint's size, is kept for the next one.

    Weights stand still from one update to the next, so they are copied while the next step makes its passes, and only the update
    waits for that.
    """

    def __init__(self, write: Callable[[CheckpointContent], Path]) -> None:
        self._write = write
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._under_way: Future[Path] | None = None
        self._held: dict[tuple[str, str], Tensor] = {}
        self._taken = Event()
        self._taken.set()

    def start(self, content: CheckpointContent) -> None:
        """Have it copied and written, behind the one before, of which `done` has told."""
        self._taken.clear()
        self._under_way = self._pool.submit(self._copy_and_write, content)

    def taken(self) -> None:
        """Wait until what is to be written is copied, so that its tensors may change."""
        self._taken.wait()

    @property
    def failed(self) -> bool:
        """Whether a checkpoint couldn't be written that has not been told of."""
        return self._under_way is not None and self._under_way.done() and self._under_way.exception() is not None

    def done(self, *, wait: bool = False) -> Path | None:
        """The checkpoint, once it is written, None where there is none that has not been told of.

        With `wait`, once it is written or couldn't be: then this raises what writing raised.
        """
        if self._under_way is None or not (wait or (self._under_way.done() and not self.failed)):
            return None
        under_way, self._under_way = self._under_way, None
        return under_way.result()

    def close(self) -> None:
        """Wait for what is being written."""
        self._pool.shutdown()

    def _copy_and_write(self, content: CheckpointContent) -> Path:
        try:
            written, shared = self._copied(content.written), self._copied(content.shared)
        finally:
            self._taken.set()
        return self._write(replace(content, written=written, shared=shared))

    def _copied(self, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        return {
            file: {name: self._copy((file, name), tensor) for name, tensor in tensors.items()}
            for file, tensors in files.items()
        }

    def _copy(self, key: tuple[str, str], tensor: Tensor) -> Tensor:
        """This process's part of one that others have parts of, else all of it."""
        held = self._held.get(key)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = self._held[key] = torch.empty_like(tensor, device="cpu", requires_grad=False)
        with torch.no_grad():
            return held.copy_(tensor)
