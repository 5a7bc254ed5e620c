"""Which rows a training step sees: shuffled, every row once an epoch, and the same again after a restart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from anyformer.errors import TextError
from anyformer.text.packing import shuffled


def refuse_other(mine: Mapping[str, int], saved: Mapping[str, Any], moving: Collection[str]) -> None:
    """Raise TextError, naming the difference, where a saved state is another stream's; what is `moving` may differ."""
    for name, value in mine.items():
        if name not in saved:
            raise TextError(f"the saved state of the sampler lacks {name!r}")
        if name not in moving and saved[name] != value:
            raise TextError(
                f"the sampler was saved with {name}={saved[name]} but is {name}={value} now; "
                "resume with the same data, seq_len, batch and seed, or start a new run"
            )


class Sampler:
    """An endless stream of batches of row numbers; step s is a function of (seed, s) and of nothing that went before.

    The stream is one permutation of all rows after another, cut every `batch_rows`: a batch at the end of an epoch is
    filled up from the next.
    """

    def __init__(self, n_rows: int, batch_rows: int, seed: int) -> None:
        if batch_rows < 1:
            raise TextError(f"a batch of {batch_rows} rows holds nothing; give 1 or more")
        if n_rows < batch_rows:
            raise TextError(
                f"the training text makes {n_rows} rows, less than one batch of {batch_rows}; "
                f"give more text, a smaller batch or a shorter seq_len"
            )
        self.n_rows, self.batch_rows, self.seed = n_rows, batch_rows, seed
        self.step = 0
        self._permutations: dict[int, np.ndarray] = {}

    def rows(self, step: int) -> np.ndarray:
        """Row numbers at `step` (from 0): int64 [batch_rows]."""
        places = np.arange(step * self.batch_rows, (step + 1) * self.batch_rows)
        epochs, within = np.divmod(places, self.n_rows)
        wanted = range(int(epochs[0]), int(epochs[-1]) + 1)  # at most two: a batch is no longer than an epoch
        known = {epoch: order for epoch, order in self._permutations.items() if epoch in wanted}
        for epoch in wanted:
            if epoch not in known:
                known[epoch] = shuffled(self.n_rows, self.seed, epoch)
        self._permutations = known
        return np.concatenate([known[epoch][within[epochs == epoch]] for epoch in wanted])

    def __iter__(self) -> Sampler:
        return self

    def __next__(self) -> np.ndarray:
        rows = self.rows(self.step)
        self.step += 1
        return rows

    def skip(self, steps: int) -> None:
        """Go on as if so many batches had been drawn."""
        self.step += steps

    def epochs(self, steps: int) -> float | None:
        """How often so many batches go through all rows; None of several texts, each of which has its own."""
        return steps * self.batch_rows / self.n_rows

    def state(self) -> dict[str, int]:
        """What `restore` needs, as JSON: the next step, and what it must be the next step of."""
        return {"step": self.step, "seed": self.seed, "n_rows": self.n_rows, "batch_rows": self.batch_rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. Raises TextError, naming the difference, for that of another stream."""
        refuse_other(self.state(), state, moving=("step",))
        self.step = int(state["step"])


class StreamSampler(Sampler):
    """Rows that follow each other: stream l of a batch goes on with the row after that of the step before.

    The streams start evenly spread over the rows and each goes round all of them, so that together they see every row in
    n_rows / batch_rows steps, and a step is a function of its number here too. The order is that of the rows.
    """

    def __init__(self, n_rows: int, batch_rows: int, seed: int) -> None:
        super().__init__(n_rows, batch_rows, seed)
        self._starts = np.arange(batch_rows) * n_rows // batch_rows

    def rows(self, step: int) -> np.ndarray:
        """Row numbers of the streams at `step` (from 0): int64 [batch_rows]."""
        return (self._starts + step) % self.n_rows

    def rounds(self, step: int) -> np.ndarray:
        """How often each stream has come to the end of the rows when `step` begins: int64 [batch_rows]."""
        return (self._starts + step) // self.n_rows
