"""Packing: documents into rows of one length, with the boundaries that attention, positions and labels respect.

A document is `begin t1 … tn end` (encoded.py). It goes into rows as pieces: a piece of n inputs predicts the token that
follows each of them, so `begin` is only ever read, `end` only ever predicted, and every other token is both. Within a
row the pieces are numbered from 1 (`document`, 0 is padding) and positions restart at 0 in each; a piece that goes on
where a row ended sees nothing of that row, so its first predictions have less to go by than the document offers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.text.encoded import EncodedCorpus

NOT_PREDICTED = -100  # PyTorch's ignore_index


class Batch(NamedTuple):
    """Rows of tokens; every field is int64 [batch, token]."""

    input_ids: np.ndarray  # 0 at padding
    labels: np.ndarray  # the next token of the same document, NOT_PREDICTED at padding
    document: np.ndarray  # which piece of its row, from 1; 0 is padding
    positions: np.ndarray  # from 0 in each piece; 0 at padding
    source: np.ndarray  # which document of the corpus, from 0; -1 at padding


PADDING = (0, NOT_PREDICTED, 0, 0, -1)  # of the fields of a batch


class Piece(NamedTuple):
    """A stretch of a document in a row."""

    start: int  # its first input, counted in the corpus's tokens
    length: int  # inputs
    source: int  # index of the document


@dataclass(frozen=True, eq=False)
class Packed(ABC):
    """Which pieces of which documents stand in which row; `batch` cuts the tokens out when they are wanted."""

    encoded: EncodedCorpus
    seq_len: int

    @property
    @abstractmethod
    def n_rows(self) -> int: ...

    @abstractmethod
    def pieces(self, row: int) -> list[Piece]:
        """Those of a row, one after the other; what they leave of it is padding."""

    def some_rows(self, batch_tokens: int, most_tokens: int | None) -> Iterator[np.ndarray]:
        """Numbers of all rows, or of about `most_tokens`, always the same ones, in batches of at most `batch_tokens`."""
        return evenly_spread(self.n_rows, self.seq_len, batch_tokens, most_tokens)

    def batch(self, rows: np.ndarray) -> Batch:
        """The rows of these numbers, in their order. Each field is [len(rows), seq_len]."""
        shape = (len(rows), self.seq_len)
        fields = Batch(*(np.full(shape, padding, dtype=np.int64) for padding in PADDING))
        counting = np.arange(self.seq_len, dtype=np.int64)
        for i, row in enumerate(rows.tolist()):
            column = 0
            for number, (start, length, source) in enumerate(self.pieces(row), start=1):
                here = slice(column, column + length)
                fields.input_ids[i, here] = self.encoded.tokens[start : start + length]
                fields.labels[i, here] = self.encoded.tokens[start + 1 : start + length + 1]
                fields.document[i, here] = number
                fields.positions[i, here] = counting[:length]
                fields.source[i, here] = source
                column += length
        return fields


@dataclass(frozen=True, eq=False)
class EndToEnd(Packed):
    """Documents one after the other, cut every `seq_len` inputs. Takes memory for documents, not for rows."""

    order: np.ndarray  # [document] int64, indices of documents
    ends: np.ndarray  # [document] int64, of each in that order, in the stream of inputs

    @property
    def n_rows(self) -> int:
        return -(-int(self.ends[-1]) // self.seq_len)

    def pieces(self, row: int) -> list[Piece]:
        found, at, stop = [], row * self.seq_len, min((row + 1) * self.seq_len, int(self.ends[-1]))
        place = int(np.searchsorted(self.ends, at, side="right"))
        while at < stop:
            source, begin = int(self.order[place]), int(self.ends[place - 1]) if place else 0
            end = min(stop, int(self.ends[place]))
            found.append(Piece(int(self.encoded.offsets[source]) + at - begin, end - at, source))
            at, place = end, place + 1
        return found


@dataclass(frozen=True, eq=False)
class Whole(Packed):
    """Row r holds the pieces `row_offsets[r]` to `row_offsets[r + 1] - 1`."""

    start: np.ndarray  # [piece] int64
    length: np.ndarray  # [piece] int64
    source: np.ndarray  # [piece] int64
    row_offsets: np.ndarray  # [row + 1] int64

    @property
    def n_rows(self) -> int:
        return len(self.row_offsets) - 1

    def pieces(self, row: int) -> list[Piece]:
        here = slice(self.row_offsets[row], self.row_offsets[row + 1])
        return list(map(Piece, *(each[here].tolist() for each in (self.start, self.length, self.source))))


def pack(encoded: EncodedCorpus, seq_len: int, *, seed: int) -> EndToEnd:
    """Rows for training: the documents in an order drawn from `seed`, end to end, cut every `seq_len` inputs.

    No token is lost and only the last row is padded; a document that a row's end cuts goes on in the next row.
    """
    _check(encoded, seq_len)
    order = shuffled(encoded.n_documents, seed)
    inputs = np.diff(encoded.offsets)[order] - 1  # all but a document's last token
    return EndToEnd(encoded, seq_len, order, np.cumsum(inputs))


def pack_whole(encoded: EncodedCorpus, seq_len: int) -> Whole:
    """Rows for validation: each document exactly once, whole where it fits into a row.

    A longer one is cut into windows of `seq_len` inputs, each read without the one before; windows and short documents
    share rows, the longest first, each into the fullest row that has room (best-fit decreasing), the rest is padding.
    """
    _check(encoded, seq_len)
    lengths = np.diff(encoded.offsets) - 1
    windows = -(-lengths // seq_len)
    source = np.repeat(np.arange(encoded.n_documents), windows)
    number = np.arange(len(source)) - np.repeat(np.cumsum(windows) - windows, windows)
    start = encoded.offsets[source] + number * seq_len
    length = np.minimum(seq_len, lengths[source] - number * seq_len)

    by_size = np.argsort(-length, kind="stable")
    n_rows = int((length == seq_len).sum())  # of full windows, each alone
    row_of = np.arange(len(length))
    open_rows: list[tuple[int, int]] = []  # (room, row), sorted
    for i in range(n_rows, len(length)):
        size = int(length[by_size[i]])
        place = bisect_left(open_rows, (size, 0))
        room, row = open_rows.pop(place) if place < len(open_rows) else (seq_len, n_rows)
        n_rows += row == n_rows
        row_of[i] = row
        if room > size:
            left = (room - size, row)
            open_rows.insert(bisect_left(open_rows, left), left)
    order = by_size[np.argsort(row_of, kind="stable")]
    row_offsets = np.append(0, np.cumsum(np.bincount(row_of)))
    return Whole(encoded, seq_len, start[order], length[order], source[order], row_offsets)


def evenly_spread(n_rows: int, seq_len: int, batch_tokens: int, most_tokens: int | None) -> Iterator[np.ndarray]:
    """Numbers of rows of `seq_len` tokens: of all, or of about `most_tokens`, in batches of at most `batch_tokens`."""
    wanted = n_rows if most_tokens is None else min(n_rows, max(1, most_tokens // seq_len))
    rows = np.arange(wanted) * n_rows // wanted  # the first rows may hold the longest documents
    size = max(1, batch_tokens // seq_len)
    return (rows[start : start + size] for start in range(0, wanted, size))


def padded(rows: Sequence[np.ndarray], padding: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids, mask): rows of tokens side by side, padded at the right; int64 and bool, [row, token] each."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, padding, dtype=np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def shuffled(n: int, *seed: int) -> np.ndarray:
    """A permutation of `n` numbers that depends on `seed` alone.

    Sorting raw output: NumPy promises the streams of its bit generators for ever, those of `Generator.permutation` not.
    Raises TextError for a negative seed.
    """
    if min(seed) < 0:
        raise TextError(f"a seed of {min(seed)} is negative; give 0 or more")
    return np.argsort(np.random.PCG64(np.random.SeedSequence(seed)).random_raw(n), kind="stable")


def _check(encoded: EncodedCorpus, seq_len: int) -> None:
    if seq_len < 1:
        raise TextError(f"rows of {seq_len} tokens hold nothing; seq_len must be at least 1")
    if not encoded.n_documents:
        raise TextError("there are no documents to pack")
