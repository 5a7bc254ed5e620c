"""Rows of several texts in one stream, each text in proportion to a weight that may change as the run goes on.

Every batch has the whole number of rows of each text that is nearest to its share; what is over or missing is made up for in
the batches after. So the shares hold within a few rows at every moment, not on average, and the order is a function of the
seed and the weights alone. A text whose rows are used up gives its share to the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from anyformer.errors import TextError
from anyformer.text.packing import Packed, shuffled
from anyformer.text.sampler import Sampler

Stages = Sequence[tuple[int, Sequence[float]]]  # (steps, the weight of each text), in sequence; the last one goes on


@dataclass
class _Given:
    """What has been drawn before a step."""

    rows: list[int]  # of each text
    credit: list[float]  # rows that each text is owed, together 0 between two steps
    step: int = 0
    taken: list[int] = field(default_factory=list)  # in the step before


class MixtureSampler(Sampler):
    """An endless stream of batches of row numbers; those of text i come after the rows of the texts before it.

    Each text's rows come in one permutation after another, as `Sampler` has them; of one text alone this is that sampler.
    """

    def __init__(
        self, n_rows: Sequence[int], batch_rows: int, seed: int, stages: Stages, epochs: Sequence[float | None] = ()
    ) -> None:
        """`epochs`: how often each text is read at most; None: as often as it is wanted."""
        if batch_rows < 1:
            raise TextError(f"a batch of {batch_rows} rows holds nothing; give 1 or more")
        self.n_rows, self.batch_rows, self.seed, self.step = sum(n_rows), batch_rows, seed, 0
        self._stages = [(steps, tuple(weights)) for steps, weights in stages]
        self._first = np.cumsum([0, *n_rows])[:-1]
        self._n = list(n_rows)
        limits = epochs or [None] * len(n_rows)
        self._most = [math.inf if e is None else round(e * n) for e, n in zip(limits, n_rows, strict=True)]
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self._given = self._start()

    def _start(self) -> _Given:
        return _Given([0] * len(self._n), [0.0] * len(self._n))

    def epochs(self, steps: int) -> float | None:
        return super().epochs(steps) if len(self._n) == 1 else None

    def rows(self, step: int) -> np.ndarray:
        """Row numbers at `step` (from 0): int64 [batch_rows]. Raises TextError where the texts of its stage are used up."""
        if self._given.step > step:
            self._given = self._start()
        while self._given.step <= step:
            self._advance()
        wanted: dict[tuple[int, int], np.ndarray] = {}
        found = []
        for i, (n, taken, after) in enumerate(zip(self._n, self._given.taken, self._given.rows, strict=True)):
            epochs, within = np.divmod(np.arange(after - taken, after), n)
            for epoch in np.unique(epochs).tolist():
                key = i, epoch
                wanted[key] = self._orders[key] if key in self._orders else shuffled(n, self.seed, epoch)
                found.append(self._first[i] + wanted[key][within[epochs == epoch]])
            last = max((key for key in self._orders if key[0] == i), default=None)
            if not taken and last is not None:  # a text of small weight is not in every batch
                wanted[last] = self._orders[last]
        self._orders = wanted
        return np.concatenate(found)

    def counts(self, steps: int) -> list[int]:
        """The rows of each text in the first steps. Raises TextError, naming the step, where the texts are used up."""
        self.rows(steps - 1)
        return list(self._given.rows)

    def _weights(self, step: int) -> tuple[float, ...]:
        before = 0
        for steps, weights in self._stages:
            before += steps
            if step < before:
                return weights
        return self._stages[-1][1]

    def _advance(self) -> None:
        given, weights = self._given, self._weights(self._given.step)
        taken, rest = [0] * len(weights), self.batch_rows
        while rest:
            left = [most - rows - now for most, rows, now in zip(self._most, given.rows, taken, strict=True)]
            open_to = [i for i, weight in enumerate(weights) if weight > 0 and left[i] > 0]
            if not open_to:
                raise TextError(
                    f"the texts are used up at step {given.step + 1}: each that has a weight there was read as often as its "
                    "`epochs` allow; allow more, or train on fewer tokens"
                )
            total = sum(weights[i] for i in open_to)
            shares = {i: rest * weights[i] / total for i in open_to}
            whole = {i: int(min(math.floor(share), left[i])) for i, share in shares.items()}
            for i, n in whole.items():
                taken[i] += n
            rest -= sum(whole.values())
            if any(whole[i] == left[i] for i in open_to):
                continue  # one of them is used up: what is left is shared out among the others
            for i in open_to:
                given.credit[i] += shares[i] - whole[i]
            for _ in range(rest):
                most_owed = max((i for i in open_to if left[i] > whole[i]), key=lambda i: given.credit[i])
                given.credit[most_owed] -= 1
                taken[most_owed] += 1
                left[most_owed] -= 1
            rest = 0
        given.rows = [rows + now for rows, now in zip(given.rows, taken, strict=True)]
        given.taken, given.step = taken, given.step + 1


class MixedRows:
    """Rows of several packed texts, numbered one text after the other."""

    def __init__(self, parts: Sequence[Packed]) -> None:
        self.parts = parts
        self._ends = np.cumsum([part.n_rows for part in parts])

    def batch(self, rows: np.ndarray) -> Any:
        """The rows of these numbers, in their order; `source` counts the documents of each text by itself."""
        which = np.searchsorted(self._ends, rows, side="right")
        first = [0, *self._ends.tolist()]
        places = [np.flatnonzero(which == i) for i in range(len(self.parts))]
        found = [
            part.batch(rows[place] - begin)
            for part, place, (begin, _) in zip(self.parts, places, pairwise(first), strict=True)
            if len(place)
        ]
        order = np.argsort(np.concatenate(places), kind="stable")
        return type(found[0])(*(np.concatenate(each)[order] for each in zip(*found, strict=True)))
