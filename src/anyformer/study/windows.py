"""Losses by position in windows of several lengths: what a model makes of more context than it was trained on, or of less."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.text import EncodedCorpus
from anyformer.training.run.evaluation import BATCH_TOKENS


class WindowLoss(NamedTuple):
    """Nats at each position of windows of one length, which lie end to end in chunks as long as the longest length."""

    length: int  # tokens; the first of a window is not predicted
    windows: int  # of all chunks together
    chunks: int
    nats: tuple[float, ...]  # [length - 1], summed over all windows
    # [length - 1], summed over the last window of each chunk: they end with the same tokens at every length
    ends: tuple[float, ...]

    def loss(self, last: int | None = None) -> float:
        """Nats a token, of all predicted tokens; or of the `last` ones of each chunk, which are the same at every length.

        Early tokens of a window have little context, so that the mean over all rises where windows are short (Press et al.
        2022, arXiv:2108.12409, section B.1); the last ones have all that the length gives.
        """
        if last is None:
            return math.fsum(self.nats) / (self.windows * len(self.nats))
        return math.fsum(self.ends[-last:]) / (self.chunks * last)

    def between(self, low: int, high: int) -> float:
        """Nats a token at positions low … high - 1 of all windows; position 0 is the first token, which is not predicted."""
        return math.fsum(self.nats[low - 1 : high - 1]) / (self.windows * (high - low))


def window_losses(model: Transformer, text: EncodedCorpus, lengths: Sequence[int]) -> tuple[WindowLoss, ...]:
    """The losses of a text's chunks in windows of each length, ascending; of those lengths that the model has positions for.

    Each length divides the longest. Chunks lie within documents; what is left of a document is not read. Empty where no
    document is as long as a chunk.
    """
    chunks = np.concatenate([np.empty((0, max(lengths)), np.int64), *_chunks(text, max(lengths))])
    limit = learned_positions(model.spec.stack)
    able = sorted(length for length in set(lengths) if limit is None or length <= limit)
    return tuple(_of_length(model, chunks, length) for length in able) if len(chunks) else ()


def _chunks(text: EncodedCorpus, length: int) -> Iterator[np.ndarray]:
    """The whole chunks [chunk, length] of each document that has one."""
    for i in range(text.n_documents):
        document = text.document(i)
        n = len(document) // length
        yield document[: n * length].reshape(n, length).astype(np.int64)


def _of_length(model: Transformer, chunks: np.ndarray, length: int) -> WindowLoss:
    windows = torch.from_numpy(chunks.reshape(-1, length))
    each = torch.cat([_nats(model, rows) for rows in windows.split(max(1, BATCH_TOKENS // length))])
    a_chunk = len(windows) // len(chunks)
    nats, ends = (tuple(rows.sum(0).tolist()) for rows in (each, each[a_chunk - 1 :: a_chunk]))
    return WindowLoss(length, len(windows), len(chunks), nats, ends)


def _nats(model: Transformer, rows: torch.Tensor) -> torch.Tensor:
    """The nats [row, length - 1] of each token but the first of rows [row, length], in float64."""
    rows = rows.to(next(model.parameters()).device)
    with torch.no_grad():
        logits = model(rows).logits[:, :-1]
    return functional.cross_entropy(logits.transpose(1, 2).float(), rows[:, 1:], reduction="none").double().cpu()
