"""Where batches come from: an endless stream of them that can stop, and go on where it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from anyformer.training.objectives import Rows


class Feed(Protocol):
    """An endless stream of batches that can stop and go on."""

    def __next__(self) -> Rows: ...

    def skip(self, steps: int) -> None:
        """Go on as if so many batches had been taken: their rows, which take time, are not prepared."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What `restore` needs, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        ...


class Numbers(Protocol):
    """An endless stream of the numbers of the rows of each batch: `text.Sampler`, `text.PairSampler`."""

    def __next__(self) -> np.ndarray: ...

    def skip(self, steps: int) -> None: ...

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Examples(Protocol):
    """What has a batch for any numbers."""

    def batch(self, numbers: np.ndarray, /) -> Rows: ...


class SampledFeed:
    """The rows that a sampler names; what it says is all there is to save."""

    def __init__(self, examples: Examples, sampler: Numbers) -> None:
        self._examples, self._sampler = examples, sampler
        self.skip, self.state, self.restore = sampler.skip, sampler.state, sampler.restore

    def __next__(self) -> Rows:
        return self._examples.batch(next(self._sampler))
