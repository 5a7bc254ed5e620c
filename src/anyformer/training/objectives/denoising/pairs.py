"""Noisy text for encoder–decoders: each document of a row becomes a source that is read and a target that is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.spec import Workload
from anyformer.text import NOT_PREDICTED, Batch, Tokenizer
from anyformer.text.noise import Example
from anyformer.training.data.noise import Noise

Corrupt = Callable[[np.ndarray, np.random.Generator], Example]


class NoisyPairs(NamedTuple):
    """Rows of sources and targets, padded at the right; every field is int64, [batch, token] of its side.

    A document's source and target have one number; those of other numbers never see each other.
    """

    source_ids: np.ndarray  # 0 at padding
    source_document: np.ndarray  # from 1; 0 is padding
    target_ids: np.ndarray  # what the decoder reads: the token that begins an answer, then all labels but the last
    target_document: np.ndarray
    labels: np.ndarray  # NOT_PREDICTED at padding
    source: np.ndarray  # of each label: which document of the corpus, from 0; -1 at padding


@dataclass(frozen=True, eq=False)
class PairNoise(Noise):
    """Corrupts each document of a row by itself, without the token that opens it; source and target end with `end`."""

    corrupt: Corrupt
    longer: Callable[[int], int]  # the most tokens that a source or target made of so many has, its end included
    as_one: Callable[[int], int]  # the most that a decoder reads of both as one sequence
    opening: int
    begin: int  # what the decoder reads first
    end: int

    @classmethod
    def of(
        cls, corrupt: Corrupt, longer: Callable[[int], int], as_one: Callable[[int], int], tokenizer: Tokenizer
    ) -> PairNoise:
        """Raises TextError for a tokenizer that names no token that ends a text."""
        end, begin = tokenizer.end_of_text, tokenizer.start_of_answer
        if end is None or begin is None:
            raise TextError(
                f"this {tokenizer.kind} tokenizer names no token that ends a text; name one as eos_token in "
                "tokenizer_config.json beside it"
            )
        opening = end if tokenizer.begin_of_text is None else tokenizer.begin_of_text
        return cls(corrupt, longer, as_one, opening, begin, end)

    def __call__(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> NoisyPairs:
        rows = [self._row(batch, i, rng) for i, rng in enumerate(rngs)]
        source_ids, source_document, labels, target_document, source = (
            _padded(list(side), padding)
            for side, padding in zip(zip(*rows, strict=True), (0, 0, NOT_PREDICTED, 0, -1), strict=True)
        )
        first = np.diff(target_document, axis=1, prepend=0) != 0
        target_ids = np.where(first, self.begin, np.roll(labels, 1, axis=1))
        target_ids[target_document == 0] = 0
        return NoisyPairs(source_ids, source_document, target_ids, target_document, labels, source)

    def _row(self, batch: Batch, i: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        parts: list[list[np.ndarray]] = [[np.zeros(0, dtype=np.int64)] for _ in range(5)]
        for number in range(1, int(batch.document[i].max()) + 1):
            here = batch.document[i] == number
            ids = batch.input_ids[i][here]
            ids = ids[1:] if ids[0] == self.opening else ids
            if not len(ids):
                continue
            example = self.corrupt(ids, rng)
            source, target = (np.append(side, self.end) for side in example)
            row = (source, _all(number, source), target, _all(number, target), _all(batch.source[i][here][0], target))
            for part, piece in zip(parts, row, strict=True):
                part.append(piece)
        return tuple(np.concatenate(part) for part in parts)

    def longest(self, seq_len: int) -> int:
        return self.longer(seq_len)

    def joint(self, seq_len: int) -> int:
        return self.as_one(seq_len)

    def load(self, rows: NoisyPairs) -> Workload:
        n = len(rows.labels)
        source, target = (-(-int((side > 0).sum()) // n) for side in (rows.source_document, rows.target_document))
        return Workload(batch=1, query=target, memory=source)


def _all(value: int, like: np.ndarray) -> np.ndarray:
    return np.full(len(like), value, dtype=np.int64)


def _padded(rows: list[np.ndarray], padding: int) -> np.ndarray:
    result = np.full((len(rows), max(1, *map(len, rows))), padding, dtype=np.int64)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result
