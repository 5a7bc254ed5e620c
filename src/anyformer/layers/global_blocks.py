"""Blocks near the query's and the first and last block for all: BigBird. Zaheer et al. 2020, arXiv:2007.14062, section 2.

The paper adds `n_random` blocks drawn for each row of blocks. In evaluation transformers' class draws none and takes the first
block in their place, so that its keys count 1 + n_random times: that is computed here, and nothing is drawn.
"""

from __future__ import annotations

import math
from typing import TypeVar

from torch import Tensor

from anyformer.layers.mask import Everything, Mask
from anyformer.layers.part import Part
from anyformer.layers.scores import Content, ScoreSpec
from anyformer.layers.tokens import Span, Tokens
from anyformer.spec import Count, Sizes, Spec, Window

S = TypeVar("S", bound=Spec)


class GlobalBlocks(Mask):
    """A text is cut into blocks of `size` tokens; a token sees its own, both beside it, the first and the last of the text.

    Tokens of the first and last block see all, and so does every token of a text of up to 5 + 2 · n_random blocks.
    """

    size: Window
    n_random: Count

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        q, k, last, few = _blocks(query, key, self.size, self.n_random)
        return ((q - k).abs() <= 1) | (q == 0) | (k == 0) | (q == last) | (k == last) | few

    def within(self, query: Span, key: Span) -> Mask:
        return Everything() if key[0] == 0 and key[1] <= _least(self.size, self.n_random) else self

    def pairs(self, query: int, past: int, n_heads: int) -> int:
        total, last = past + query, (past + query - 1) // self.size
        if total <= _least(self.size, self.n_random):
            return n_heads * query * total
        tokens = [min(self.size, total - self.size * block) for block in range(last + 1)]
        count = 0
        for block in range(past // self.size, last + 1):
            near = {0, last, *range(max(0, block - 1), min(last, block + 1) + 1)}
            seen = total if block in (0, last) else sum(tokens[one] for one in near)
            count += seen * (min(total, self.size * (block + 1)) - max(past, self.size * block))
        return n_heads * count

    def resized(self, to: Sizes) -> GlobalBlocks:
        return _smaller(self, to, self.size, self.n_random)


class FirstBlockAgainSpec(ScoreSpec):
    """log(1 + n_random) for keys of the first block: they count so many times to queries that see a part of the text."""

    size: Window
    n_random: Count

    def resized(self, to: Sizes) -> FirstBlockAgainSpec:
        return _smaller(self, to, self.size, self.n_random)


class FirstBlockAgain(Part[FirstBlockAgainSpec]):
    def forward(self, content: Content | None, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch or 1, 1, query, key]."""
        q, k, last, few = _blocks(query, key, self.spec.size, self.spec.n_random)
        again = (k == 0) & (q > 0) & (q < last) & ~few
        return again.float() * math.log(1 + self.spec.n_random)


def _least(size: int, n_random: int) -> int:
    """How many tokens a text has at most for all of them to see all."""
    return size * (5 + 2 * n_random)


def _blocks(query: Tokens, key: Tokens, size: int, n_random: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The blocks of queries and keys, the last of each key's document, and whether that is short."""
    return query.position // size, key.position // size, key.ends // size, key.ends < _least(size, n_random)


def _smaller(value: S, to: Sizes, size: int, n_random: int) -> S:
    """Where blocks shrink, one is drawn: in a short text too, some pairs are hidden."""
    small = to.window(size)
    return value.but(size=small, n_random=Count(n_random if small == size else 1))
