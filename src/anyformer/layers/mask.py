"""Which keys a query sees: predicates of what is known about tokens, combined by & | ~.

"The same document, a real token" is added by `visible`, so packing, padding and half-empty caches need no code elsewhere.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import and_, or_
from typing import Annotated

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.layers.counting import counted, sum_of_floors, sum_of_minima
from anyformer.layers.execution import at_every_length
from anyformer.layers.tokens import Span, Tokens, unmarked
from anyformer.spec import Caveat, Count, Range, Spec, Window

Band = tuple[float, float]  # how many keys before and after its own a query sees; math.inf: all


class Mask(Spec, abstract=True):
    """A predicate. A subclass writes `__call__`, and `band` where what a query sees is an interval of positions."""

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        """Whether a query sees a key; facts are [batch, 1, query, 1] and [batch, 1, 1, key], head [1, heads, 1, 1]."""
        raise TypeError(f"{self.kind} is a mask without a predicate; give it a __call__")

    def band(self) -> Band | None:
        """(keys before, keys after) its own that a query sees; None where that is no interval."""
        return None

    def reach(self) -> int | None:
        """How many of the last tokens a new token can see, its own included; None: all."""
        band = self.band()
        return None if band is None or math.isinf(band[0]) else int(band[0]) + 1

    def pairs(self, query: int, past: int, n_heads: int) -> int:
        """How many (head, query, key) are seen by `query` new tokens after `past` ones: in closed form for a band."""
        band, total = self.band(), past + query
        if band is not None:
            before = sum_of_minima(past, total, band[0])
            after = sum_of_minima(0, query, band[1])
            return n_heads * (before + after + query)
        return counted(self, query, past, n_heads)

    def pairs_of_memory(self, query: int, past: int, memory: int, n_heads: int) -> int:
        """How many are seen where the keys are the `memory` tokens of an encoder, which are counted from 0 as the text's are."""
        if self.within((past, past + query), (0, memory)) == Everything():
            return n_heads * query * memory
        return counted(self, query, past, n_heads, memory)

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int | None:
        """The same together with a causal mask, in closed form; None where there is none."""
        return None

    def period(self) -> int | None:
        """An order of tokens that whoever computes by blocks may take: positions alike modulo this number lie together."""
        return None

    def of_head(self, head: int) -> Mask:
        """What is left of the mask for one head."""
        return self

    def disjoint(self) -> tuple[Mask, ...]:
        """Masks that show no pair twice and together what this one shows, apart where they offer orders of their own."""
        return (self,)

    def within(self, query: Span, key: Span) -> Mask:
        """What is left of the mask for plain tokens at these positions: the parts that hide nothing fall away."""
        band = self.band()
        if band and at_every_length(query[1] - 1 - key[0] <= band[0], key[1] - 1 - query[0] <= band[1]):
            return Everything()
        return self

    def __and__(self, other: Mask) -> Mask:
        return And(masks=(*_flat(self, And), *_flat(other, And)))

    def __or__(self, other: Mask) -> Mask:
        return Or(masks=(*_flat(self, Or), *_flat(other, Or)))

    def __invert__(self) -> Mask:
        return Not(mask=self)


class Everything(Mask):
    """Bidirectional."""

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (query.position >= 0) | (key.position >= 0)

    def band(self) -> Band:
        return math.inf, math.inf


class Causal(Mask):
    """A token sees itself and what comes before."""

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return _order(key) <= _order(query)

    def band(self) -> Band:
        return math.inf, 0


class SlidingWindow(Mask):
    """A token sees `size` keys back, its own included; what comes after is left to other masks."""

    size: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return query.position - key.position < self.size

    def band(self) -> Band:
        return self.size - 1, math.inf


class LookAhead(Mask):
    """A token sees `size` keys ahead; what comes before is left to other masks."""

    size: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return key.position - query.position <= self.size

    def band(self) -> Band:
        return math.inf, self.size


class SymmetricWindow(Mask):
    """A token sees `radius` keys to each side, and its own (Longformer's window w is a radius of w / 2)."""

    radius: Annotated[Window, Range(0, 2**40)]

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (query.position - key.position).abs() <= self.radius

    def band(self) -> Band:
        return self.radius, self.radius


class Strided(Mask):
    """A token sees the keys whose distance is a multiple of `stride` (Sparse Transformer, arXiv:1904.10509, section 4.2)."""

    stride: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (query.position - key.position) % self.stride == 0

    def period(self) -> int:
        return self.stride

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int:
        return n_heads * (query + sum_of_floors(past + query, self.stride) - sum_of_floors(past, self.stride))


class SameBlock(Mask):
    """Text is cut into blocks of `size` tokens; a token sees the keys of its own (Sparse Transformer's fixed pattern)."""

    size: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return query.position // self.size == key.position // self.size

    def reach(self) -> int:
        return self.size

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int:
        return AdjacentBlocks(size=self.size, before=0).causal_pairs(query, past, n_heads)


class AdjacentBlocks(Mask):
    """A token sees its own block of `size` tokens, `before` before it and `after` behind it (Reformer, arXiv:2001.04451)."""

    size: Window
    before: int = 1
    after: int = 0

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        back = query.position // self.size - key.position // self.size
        return (back <= self.before) & (back >= -self.after)

    def reach(self) -> int:
        return (self.before + 1) * self.size

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int:
        return n_heads * (self._of_first(past + query) - self._of_first(past))

    def _of_first(self, n: int) -> int:
        """The pairs of a head's first n queries: what is before each in its block, and whole blocks before that."""
        size, (blocks, rest) = self.size, divmod(n, self.size)
        whole = size * sum_of_minima(0, blocks, self.before) + rest * min(blocks, self.before)
        return n * (n + 1) // 2 - size * (sum_of_floors(n, size) - whole)


class BlockEnds(Mask):
    """A token sees the `last` keys of every block of `size` tokens (Sparse Transformer's fixed pattern)."""

    size: Window
    last: Count

    def __post_init__(self) -> None:
        self.require("last", self.last <= self.size, f"must be from 1 to size = {self.size}")

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (key.position % self.size >= self.size - self.last) & (query.position >= 0)


class Prefix(Mask):
    """Every token sees the prefix: the first `size` tokens, or, without a size, those whose token_type_ids is 0."""

    size: Window | None = None

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        if self.size is not None:
            return (key.position < self.size) & (query.position >= 0)
        if key.segment is None:
            raise InputError(
                "this model's mask has a prefix without a size: mark its tokens 0 in token_type_ids, others 1"
            )
        return (key.segment == 0) & (query.position >= 0)

    def pairs(self, query: int, past: int, n_heads: int) -> int:
        return n_heads * query * min(self.size or 0, past + query)

    def caveats(self) -> tuple[Caveat, ...]:
        return (
            Caveat("causality", "tokens of the prefix see each other, later ones too"),
            Caveat("cache", "the prefix must come in one chunk, since its tokens see later ones of it"),
        )


class And(Mask):
    """What all of the masks show."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return reduce(and_, [mask(query, key, head) for mask in self.masks])

    def band(self) -> Band | None:
        before, after = math.inf, math.inf
        for mask in self.masks:  # no := in a comprehension: torch.compile stumbles over it
            band = mask.band()
            if band is None:
                return None
            before, after = min(before, band[0]), min(after, band[1])
        return before, after

    def of_head(self, head: int) -> Mask:
        return And(masks=tuple(mask.of_head(head) for mask in self.masks))

    def reach(self) -> int | None:
        reaches = [mask.reach() for mask in self.masks]
        return min((reach for reach in reaches if reach is not None), default=None)

    def period(self) -> int | None:
        return next((period for mask in self.masks if (period := mask.period())), None)

    def disjoint(self) -> tuple[Mask, ...]:
        for i, mask in enumerate(self.masks):
            if len(parts := mask.disjoint()) > 1:
                return tuple(And(masks=(*self.masks[:i], part, *self.masks[i + 1 :])) for part in parts)
        return (self,)

    def pairs(self, query: int, past: int, n_heads: int) -> int:
        others = [mask for mask in self.masks if mask != Causal()]
        closed = others[0].causal_pairs(query, past, n_heads) if len(self.masks) == 2 and len(others) == 1 else None
        return super().pairs(query, past, n_heads) if closed is None else closed

    def within(self, query: Span, key: Span) -> Mask:
        masks = [mask.within(query, key) for mask in self.masks]
        left = tuple(mask for mask in masks if not isinstance(mask, Everything))
        return And(masks=left) if len(left) > 1 else left[0] if left else Everything()


class Or(Mask):
    """What any of the masks shows."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return reduce(or_, [mask(query, key, head) for mask in self.masks])

    def of_head(self, head: int) -> Mask:
        return Or(masks=tuple(mask.of_head(head) for mask in self.masks))

    def reach(self) -> int | None:
        reaches = [mask.reach() for mask in self.masks]
        return None if None in reaches else max(reach for reach in reaches if reach is not None)

    def disjoint(self) -> tuple[Mask, ...]:
        plain = [mask for mask in self.masks if mask.period() is None]
        parts: list[Mask] = [Or(masks=tuple(plain))] if plain else []
        for mask in self.masks:
            if mask not in plain:
                parts.append(And(masks=(mask, *(~part for part in parts))))
        return tuple(parts) if len(parts) > 1 else (self,)

    def within(self, query: Span, key: Span) -> Mask:
        masks = tuple(mask.within(query, key) for mask in self.masks)
        return Everything() if Everything() in masks else Or(masks=masks)


class Not(Mask):
    """What the mask hides."""

    mask: Mask

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return ~self.mask(query, key, head)

    def of_head(self, head: int) -> Mask:
        return Not(mask=self.mask.of_head(head))


class Heads(Mask):
    """Head by head: head i has the i-th mask, and the pattern repeats."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return reduce(or_, [m(query, key, head) & (head % len(self.masks) == i) for i, m in enumerate(self.masks)])

    def of_head(self, head: int) -> Mask:
        return self.masks[head % len(self.masks)].of_head(head)

    def reach(self) -> int | None:
        return Or(masks=self.masks).reach()

    def pairs(self, query: int, past: int, n_heads: int) -> int:
        if not all(ignores_heads(mask) for mask in self.masks):
            return super().pairs(query, past, n_heads)
        n = len(self.masks)
        return sum(mask.pairs(query, past, len(range(i, n_heads, n))) for i, mask in enumerate(self.masks))


def visible(mask: Mask, query: Tokens, key: Tokens, n_heads: int) -> Tensor | None:
    """Who sees whom as booleans [batch or 1, heads or 1, query, key]; None where everything is seen."""
    if query.span and key.span:
        mask = mask.within(query.span, key.span)
    heads = torch.arange(n_heads, device=query.position.device)
    return shown(mask, query.as_queries(), key.as_keys(), heads.view(1, -1, 1, 1))


def shown(mask: Mask, query: Tokens, key: Tokens, head: Tensor) -> Tensor | None:
    """The mask, and "the same document, a real token", of facts that are shaped as a predicate's; None: everything."""
    # By name: PyTorch 2.11's compiler hashes what is called, which it cannot where it made the mask itself.
    seen = None if isinstance(mask, Everything) else mask.__call__(query, key, head)
    if query.document is None and key.document is None:
        return seen
    # Not their `documents`: of bounds on blocks of facts (`kernels/intervals.py`) there is arithmetic alone.
    documents_q = query.position * 0 + 1 if query.document is None else query.document
    documents_k = key.position * 0 + 1 if key.document is None else key.document
    together = (documents_q == documents_k) & (documents_k > 0)
    return together if seen is None else seen & together


def ignores_heads(mask: Mask) -> bool:
    """Whether a mask gives one answer for all heads."""
    one = unmarked(1)
    return mask(one.as_queries(), one.as_keys(), torch.arange(2).view(1, -1, 1, 1)).shape[1] == 1


def _order(tokens: Tokens) -> Tensor:
    return tokens.position if tokens.order is None else tokens.order


def _flat(mask: Mask, kind: type[And] | type[Or]) -> tuple[Mask, ...]:
    return mask.masks if isinstance(mask, kind) else (mask,)
