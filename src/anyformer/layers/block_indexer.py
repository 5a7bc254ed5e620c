"""A choice of blocks of keys: MiniMax sparse attention, whose indexer says which blocks each share of the heads attends to.

MiniMax 2026, the release of MiniMax-M3 (from transformers' class). How its indexer is trained is not said there; no gradient
reaches a choice here, as of `indexer`.
"""

from __future__ import annotations

from math import gcd
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.layers.context import ForwardContext
from anyformer.layers.execution import as_given, exact
from anyformer.layers.indexer import Choosing, IndexerSpec, below_the_best
from anyformer.layers.mask import Causal, Mask
from anyformer.layers.pairs import chosen_pairs
from anyformer.layers.rotary import Rotation
from anyformer.layers.tokens import Tokens
from anyformer.spec import Count, Sizes, Window


class BlockIndexerSpec(IndexerSpec):
    """The visible keys of the `top_k` best blocks of `every` tokens, counted from a document's first. A block's score is the
    largest q·k of its visible keys; those of the query's own block and of `near` - 1 before it are above all.

    Each of the indexer's heads chooses for as many of attention's, which lie side by side. All have one key a token.
    """

    by_count: ClassVar[bool] = True

    weighed: bool = False
    every: Window = Window(128)
    near: Count = Count(1)

    def __post_init__(self) -> None:
        if self.near > self.top_k:
            raise self.refusal("near", f"must be from 1 to top_k = {self.top_k}: they are among the chosen")
        self.require(
            "weighed", not self.weighed, "is of scores that are summed over heads, and each head chooses by itself"
        )
        self.require(
            "gated", not self.gated, "is of blocks with a key of their own, and this scores each key of a block"
        )
        if self.compressor is not None:
            raise self.refusal(
                "compressor", "makes blocks that are keys, and this chooses blocks of keys; leave it out"
            )

    @property
    def choices(self) -> int:
        return self.n_heads

    @property
    def mean_of(self) -> int:
        return 1  # it scores each key of a block

    def chosen_pairs(self, mask: Mask, query: int, past: int) -> int:
        """Exact of causality alone, whose last block ends with the query; of other masks as many as there may be."""
        if mask != Causal():
            return chosen_pairs(mask, query, past, self.top_k * self.every)
        return self._before(past + query) - self._before(past)

    def _before(self, n: int) -> int:
        """The pairs of the first n tokens: a query has whole blocks and what there is of its own."""
        whole = self.top_k * self.every
        first, later = min(n, whole), max(n - whole, 0)
        blocks, rest = divmod(later, self.every)
        own = blocks * self.every * (self.every + 1) // 2 + rest * (rest + 1) // 2
        return first * (first + 1) // 2 + later * (whole - self.every) + own

    def resized(self, to: Sizes) -> BlockIndexerSpec:
        n_heads, _, head_dim = to.heads(self.n_heads, self.n_heads, self.head_dim)
        top_k = to.count(self.top_k)  # of blocks, whose size is a window
        near = min(to.count(self.near), top_k)
        return to.fields(self, n_heads=n_heads, head_dim=head_dim, top_k=top_k, near=near)

    def fitted(self, before: tuple[int, int], after: tuple[int, int]) -> BlockIndexerSpec:
        """A choice for each head of keys stays one; other numbers are cut to what divides the heads."""
        n = after[1] if self.n_heads == before[1] else gcd(self.n_heads, after[0])
        return self.but(n_heads=Count(n))


class BlockIndexer(Choosing[BlockIndexerSpec]):
    @torch.no_grad()
    def forward(
        self,
        narrow: Tensor,
        x: Tensor,
        keys: Tensor,
        among: Tokens,
        seen: Tensor | None,
        rotary: Rotation | None,
        context: ForwardContext,
    ) -> Tensor:
        """As the indexer's, [batch, choice, query, key]."""
        spec, q = self.spec, self.queries(narrow, rotary, context)
        block, n = context.once(f"blocks of {spec.every} {among.name}", lambda: numbered(among, spec.every))
        query, key = context.tokens.as_queries().position, among.as_keys().position
        ago = query // spec.every - key // spec.every
        with as_given(x):
            scores = exact(q) @ exact(keys[:, None]).mT  # [batch, choice, query, key]
            scores = scores.masked_fill((ago >= 0) & (ago < spec.near), torch.inf)
            scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
            index = block[:, None, None].expand_as(scores)
            best = scores.new_full((*scores.shape[:-1], n), -torch.inf).scatter_reduce(-1, index, scores, "amax")
            left_out = below_the_best(best, spec.top_k, context).gather(-1, index)
            return torch.zeros_like(scores).masked_fill(left_out, -torch.inf)


def numbered(among: Tokens, every: int) -> tuple[Tensor, int]:
    """(the block of each token [batch or 1, token], from 0 to below n; n): of one document, others only where they are others.

    What a query sees is of its document. Where positions count by one, those of n tokens lie in n / every + 2 blocks in a row.
    """
    block, n = among.position // every, among.n
    if not among.leaps:
        n = n // every + 2
        return block % n, n
    order = block.argsort(-1)
    sorted_blocks = block.gather(1, order)
    rank = (sorted_blocks.diff(dim=1, prepend=sorted_blocks[:, :1]) != 0).cumsum(-1)
    return torch.empty_like(rank).scatter_(1, order, rank), n
