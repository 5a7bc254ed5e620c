"""Heads: what the last hidden state is turned into, some by layers of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.layers.activation import soft_capped
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.embedding import Table
from anyformer.layers.linear import product
from anyformer.layers.part import Part, is_plain
from anyformer.layers.ranks import SplitRows, entering
from anyformer.layers.stretch import Stretches
from anyformer.layers.tokens import Tokens
from anyformer.spec import HeadLayersSpec, HeadSpec, Place, UnembeddingSpec

# Of one chunk; fewer rows where the vocabulary is large. A GPU multiplies so fast that adding each chunk's share of the
# table's gradient would take longer than its products, were chunks not larger.
MOST_ROWS, MOST_LOGITS = 1024, 2**25
GPU_ROWS, GPU_LOGITS = 4096, 2**28


# Who watches a pass, if anybody does: what runs within `watcher(times)` stands for so many equal steps.
watcher: ContextVar[Callable[[int], AbstractContextManager[None]] | None] = ContextVar("watcher", default=None)


def rows_at_once(hidden: Tensor, vocab_size: int) -> int:
    """Of how many of the tokens `hidden` [token, width] a loss that works in chunks holds the logits at once."""
    rows, logits = (GPU_ROWS, GPU_LOGITS) if hidden.is_cuda else (MOST_ROWS, MOST_LOGITS)
    return max(1, min(len(hidden), rows, max(128, logits // vocab_size)))


def chunks_of(n: int, size: int) -> Iterator[slice]:
    """Chunks of n rows, `size` each but for the last; who watches sees the first of them for all but the last."""
    starts, watch = range(0, n, size), watcher.get()
    if watch is not None and len(starts) > 2:
        with watch(len(starts) - 1):
            yield slice(0, size)
        starts = starts[-1:]
    yield from (slice(start, min(start + size, n)) for start in starts)


class Unembedding(Part[UnembeddingSpec], nn.Linear):
    """The rows of a head of its own: PyTorch's linear map to whoever looks for one."""

    weight: Any
    bias: None  # the head's, which is added once also where a table is shared
    split: SplitRows | None = None  # where other processes have the other rows

    def __init__(self, spec: UnembeddingSpec, place: Place) -> None:
        super().__init__(spec, place)
        self.register_parameter("bias", None)
        self.out_features, self.in_features = self.weight.shape

    def forward(self, input: Tensor) -> Tensor:
        """The products […, rows] of `input` […, width] with each row."""
        return product(input, self.weight)


class HeadLayers(Part[HeadLayersSpec]):
    blocks: Any
    terms: Any

    def forward(
        self, x: Tensor, ids: Tensor, residual: Any, context: ForwardContext, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """What the layers make of x [batch, token, d_model], the stack's state at tokens `ids`, and their notes."""
        here, notes = replace(context, input=x), []
        for term in self.terms:
            x = x + term(ids, context.tokens).to(x.dtype)
        state = residual.open(x, here)
        for block in self.blocks:
            state, more = block(state, residual, here, stores)
            notes += more
        return residual.close(state)[0], notes


class Head(Part[HeadSpec]):
    layers: Any  # None, or what the model runs before it calls the head: they need to know the pass
    pool: Any
    transform: Any
    table: Any  # None: what `transform` gives is the answer
    beside: Tensor | None  # the columns behind those of a tied table
    bias: Tensor | None
    stretches: Stretches | None = None  # where processes share rows, of which a pass here sees a part
    backend: str | None = None  # of torch.compile, by which a GPU computes the loss between its products

    def forward(self, x: Tensor, tokens: Tokens | None = None) -> Tensor:
        """The answer [batch, token, rows] to x [batch, token, width], or [batch, rows] where the head pools.

        x is what the head's own layers gave, where it has some. A head that pools needs to know the tokens.
        """
        if self.pool is not None:
            assert tokens is not None, f"the head {self.spec.name!r} pools, and was not told of its tokens"
            x = self.pool(x, tokens)
        for step in self.transform:
            x = step(x)
        return x if self.table is None else self.logits(x)

    def matrix(self) -> Tensor | None:
        """The table [rows, width]; None: an adapter or a hook is there, which only a call reaches."""
        plain = is_plain(self.table, Table if self.spec.tied else Unembedding)
        return self._widened(self.table.weight) if plain else None

    def _widened(self, table: Tensor) -> Tensor:
        return table if self.beside is None else torch.cat((table, self.beside.to(table.dtype)), 1)

    @property
    def split(self) -> SplitRows | None:
        """Which rows of the table are here, where other processes have the others."""
        return getattr(self.table, "split", None)

    def logits(self, x: Tensor) -> Tensor:
        """The logits […, rows] of x […, width], transformed already."""
        matrix, split = self.matrix(), self.split
        x = x if split is None else entering(x, split.ranks)
        if matrix is None and self.spec.table is not None and self.spec.tied:
            matrix = self._widened(self.table(torch.arange(self.spec.table.rows, device=x.device)))
        if matrix is None:
            logits = self.table(x) if self.bias is None else self.table(x) + self.bias
        else:
            logits = product(x, matrix, self.bias)
        if self.spec.scale is not None:
            logits = logits * self.spec.scale.value(self.place.d_model)
        logits = soft_capped(logits, self.spec.softcap)
        return logits if split is None else split.whole(logits)
