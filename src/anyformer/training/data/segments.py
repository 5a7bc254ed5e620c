"""Text in segments, each seen with a memory of those before it: streams of rows that go on. Dai et al. 2019, arXiv:1901.02860.

The paper's memory reaches across the ends of documents; here it ends with the document, as attention does everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from anyformer.text import NOT_PREDICTED, EncodedCorpus, Packed, StreamSampler
from anyformer.text.packing import shuffled
from anyformer.training.data.feed import Rows, SampledFeed

# Positions count from 0 again after so many tokens of a document, and the memory with them: angles of larger ones are
# inexact in float32.
LONGEST = 2**16


class SegmentBatch(NamedTuple):
    """The next segment of each stream; every field but the last is int64 [batch, token]."""

    input_ids: np.ndarray  # 0 at padding
    labels: np.ndarray  # the next token of the same document, NOT_PREDICTED at padding
    document: np.ndarray  # a number of the document's own, also in the segments after; 0 is padding
    positions: np.ndarray  # in the document; 0 at padding
    stream: np.ndarray  # int64 [batch, 1], from 0: whose memory a row sees


def in_streams(packed: Packed, sampler: StreamSampler) -> SampledFeed:
    """Rows of packed text, each the one after the row that was in its stream a step before."""

    def segments(rows: np.ndarray) -> SegmentBatch:
        rounds, batch = sampler.rounds(sampler.step - 1), packed.batch(rows)  # the sampler has taken the step already
        firsts = [packed.pieces(row)[0] for row in rows.tolist()]  # no other may go on with a document
        passed = np.array([first.start - packed.encoded.offsets[first.source] for first in firsts])
        offset = batch.positions + np.where(batch.document == 1, passed[:, None], 0)
        real, start = batch.document > 0, packed.encoded.offsets[batch.source]
        document, positions = placed(start + rounds[:, None] * len(packed.encoded.tokens), offset)
        stream = np.arange(len(rows))[:, None]
        return SegmentBatch(
            batch.input_ids, batch.labels, np.where(real, document, 0), np.where(real, positions, 0), stream
        )

    return SampledFeed(segments, sampler)


class SegmentValidation:
    """Documents, several side by side, each from its start in segments of its own.

    So the losses of a document are those of reading it alone.
    """

    def __init__(self, encoded: EncodedCorpus, seq_len: int, memory: int) -> None:
        self.encoded, self.seq_len, self.memory = encoded, seq_len, memory
        self.document_nbytes = encoded.document_nbytes

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        """Segments in the order of reading: all batches have the same streams.

        With `most_tokens` some of the documents are read, always the same ones, the last of them in part.
        """
        read = self._read(most_tokens)
        streams = _dealt(-(-read // self.seq_len), max(1, batch_tokens // self.seq_len))
        for step in range(max(map(len, streams))):
            now = [stream[step] if step < len(stream) else (-1, 0) for stream in streams]
            yield self._segments(now, read)

    def _read(self, most_tokens: int | None) -> np.ndarray:
        """How many inputs of each document are read [document]."""
        n = np.diff(self.encoded.offsets) - 1
        if most_tokens is None or most_tokens >= n.sum():
            return n
        order = shuffled(len(n), 0)
        before = np.cumsum(n[order]) - n[order]
        read = np.zeros_like(n)
        read[order] = np.clip(max(1, most_tokens) - before, 0, n[order])
        return read

    def _segments(self, now: list[tuple[int, int]], read: np.ndarray) -> tuple[Rows, np.ndarray]:
        shape = (len(now), self.seq_len)
        fields = [np.zeros(shape, np.int64), np.full(shape, NOT_PREDICTED), *np.zeros((2, *shape), np.int64)]
        source = np.full(shape, -1)
        for i, (document, segment) in enumerate(now):
            if document < 0:
                continue
            start, offset = self.encoded.offsets[document], segment * self.seq_len
            n = min(self.seq_len, int(read[document]) - offset)
            tokens = self.encoded.tokens[start + offset : start + offset + n + 1]
            of = placed(start, np.arange(offset, offset + n))
            for field, values in zip(fields, (tokens[:-1], tokens[1:], *of), strict=True):
                field[i, :n] = values
            source[i, :n] = document
        ids, labels, number, position = fields
        return SegmentBatch(ids, labels, number, position, np.arange(len(now))[:, None]), source


def placed(start: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(a number that tells documents apart, from 1; the position), from where a document starts and how far it is read."""
    return 1 + start + offset // LONGEST * LONGEST, offset % LONGEST


def _dealt(segments: np.ndarray, streams: int) -> list[list[tuple[int, int]]]:
    """For each stream its (document, segment) in order, the longest documents first, each where there is least."""
    wanted = np.flatnonzero(segments)
    found: list[list[tuple[int, int]]] = [[] for _ in range(min(streams, len(wanted)))]
    shortest = [(0, stream) for stream in range(len(found))]
    for document in wanted[np.argsort(-segments[wanted], kind="stable")].tolist():
        n, stream = heappop(shortest)
        found[stream] += [(document, segment) for segment in range(int(segments[document]))]
        heappush(shortest, (n + int(segments[document]), stream))
    return found
