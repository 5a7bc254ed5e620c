"""Rows of packed text with noise: what hides something from the model is a function of the seed, the step and the row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from anyformer.errors import UsageError
from anyformer.spec import Workload
from anyformer.text import EncodedCorpus, Sampler, pack, pack_whole
from anyformer.training.data.feed import Rows, SampledFeed
from anyformer.training.objectives.specification import ObjectiveSpec

_TRAINING, _VALIDATION = 0, 1  # their noise differs, though the numbers of rows may not


class ByNumber(Protocol):
    """Rows by their numbers, before noise."""

    def batch(self, rows: np.ndarray) -> Any:
        """The rows of these numbers, as the noise takes them."""
        ...


class Numbered(ByNumber, Protocol):
    """Those of one text: documents packed (`text.Packed`), or passages that pairs are made of."""

    @property
    def encoded(self) -> EncodedCorpus: ...

    @property
    def n_rows(self) -> int: ...

    def some_rows(self, batch_tokens: int, most_tokens: int | None) -> Iterator[np.ndarray]:
        """Numbers of all rows, or of about `most_tokens`, always the same ones, in batches of at most `batch_tokens`."""
        ...


class Noise(ABC):
    """Changes to rows of text, which the model learns to undo."""

    @abstractmethod
    def __call__(self, batch: Any, rngs: Sequence[np.random.Generator]) -> Rows:
        """The noisy rows, each by a generator of its own; `source` is the document of each label, -1 for none."""

    def rows(self, text: EncodedCorpus, seq_len: int, seed: int | None = None) -> Numbered:
        """The rows before noise: documents end to end in an order drawn by `seed`, or whole ones where there is none."""
        return pack_whole(text, seq_len) if seed is None else pack(text, seq_len, seed=seed)

    def longest(self, seq_len: int) -> int:
        """The most tokens of one document that the model will see in a row."""
        return seq_len

    def joint(self, seq_len: int) -> int:
        """The same, for a decoder that reads in one row with what it writes what an encoder would read."""
        return self.longest(seq_len)

    def load(self, rows: Rows) -> Workload:
        """The workload of an average one of these rows."""
        return Workload(batch=1, query=rows.labels.shape[1])


def noisy(packed: ByNumber, sampler: Sampler, noise: Noise) -> SampledFeed:
    """Rows of packed text in shuffled order, with noise."""

    def rows(numbers: np.ndarray) -> Rows:
        step = sampler.step - 1  # the sampler has taken it already
        rngs = [np.random.default_rng((sampler.seed, _TRAINING, step, row)) for row in range(len(numbers))]
        return noise(packed.batch(numbers), rngs)

    return SampledFeed(rows, sampler)


class PackedValidation:
    """Whole documents in rows; noise, if any, is the same each time."""

    def __init__(self, packed: Numbered, noise: Noise | None, seed: int) -> None:
        self._packed, self._noise, self._seed = packed, noise, seed
        self.document_nbytes = packed.encoded.document_nbytes

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        for numbers in self._packed.some_rows(batch_tokens, most_tokens):
            rows = self._packed.batch(numbers)
            if self._noise is not None:
                rngs = [np.random.default_rng((self._seed, _VALIDATION, int(row))) for row in numbers]
                rows = self._noise(rows, rngs)
            yield rows, rows.source


def load_of(noise: Noise, packed: Numbered) -> Workload:
    """The workload of an average row, from a few rows of the text."""
    n = min(packed.n_rows, 16)
    rngs = [np.random.default_rng((0, row)) for row in range(n)]
    return noise.load(noise(packed.batch(np.arange(n)), rngs))


def check_hides(said: ObjectiveSpec, rate: float, seq_len: int) -> None:
    """Raise UsageError where a rate hides not one token of a row."""
    if round(rate * seq_len) < 1:
        raise UsageError(
            f"{said.kind} with a rate of {rate:g} hides nothing in rows of {seq_len} tokens; "
            f"use a rate of {1 / seq_len:.2g} or more, or longer rows"
        )
