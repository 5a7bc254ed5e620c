"""Which keys a query sees: predicates of what is known about tokens, combined by & | ~.

"The same document, a real token" is added by `visible`, so packing, padding and half-empty caches need no code elsewhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.layers.counting import counted, ignores_heads, sum_of_minima
from anyformer.layers.tokens import Span, Tokens
from anyformer.spec import Caveat, Count, Spec, Window

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

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int | None:
        """The same together with a causal mask, in closed form; None where there is none."""
        return None

    def within(self, query: Span, key: Span) -> Mask:
        """What is left of the mask for plain tokens at these positions: the parts that hide nothing fall away."""
        band = self.band()
        if band and query[1] - 1 - key[0] <= band[0] and key[1] - 1 - query[0] <= band[1]:
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

    def __post_init__(self) -> None:
        if self.size < 1:
            raise self.refusal("size", "must be at least 1: a query's own key counts")

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return query.position - key.position < self.size

    def band(self) -> Band:
        return self.size - 1, math.inf


class SymmetricWindow(Mask):
    """A token sees `radius` keys to each side, and its own (Longformer's window w is a radius of w / 2)."""

    radius: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (query.position - key.position).abs() <= self.radius

    def band(self) -> Band:
        return self.radius, self.radius


class Strided(Mask):
    """A token sees the keys whose distance is a multiple of `stride` (Sparse Transformer, arXiv:1904.10509, section 4.2)."""

    stride: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (query.position - key.position) % self.stride == 0

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int:
        return n_heads * (_multiples(past + query, self.stride) - _multiples(past, self.stride))


class SameBlock(Mask):
    """Text is cut into blocks of `size` tokens; a token sees the keys of its own (Sparse Transformer's fixed pattern)."""

    size: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return query.position // self.size == key.position // self.size

    def reach(self) -> int:
        return self.size


class BlockEnds(Mask):
    """A token sees the `last` keys of every block of `size` tokens (Sparse Transformer's fixed pattern)."""

    size: Window
    last: Count

    def __post_init__(self) -> None:
        if not 0 < self.last <= self.size:
            raise self.refusal("last", f"must be from 1 to size = {self.size}")

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (key.position % self.size >= self.size - self.last) & (query.position >= 0)


class LocalAndVertical(Mask):
    """Blocks of `size` keys: a query sees the last `near` ones, its own included, and every `stride`-th (Phi-3-small,
    arXiv:2404.14219, section 2).

    Head h starts counting h blocks earlier than head 0. What comes after the query is left to other masks.
    """

    size: Window
    near: Window
    stride: Window

    def __post_init__(self) -> None:
        for name in ("size", "near", "stride"):
            if getattr(self, name) < 1:
                raise self.refusal(name, "must be at least 1")

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        q, k = query.position // self.size, key.position // self.size
        return (q - k < self.near) | ((k + head + 1) % self.stride == 0)

    def causal_pairs(self, query: int, past: int, n_heads: int) -> int:
        total, size, stop = 0, self.size, past + query
        for block in range(past // size, -(-stop // size)):
            first, last = max(past, block * size), min(stop, (block + 1) * size)  # positions of queries in this block
            n, far = last - first, max(0, block - self.near + 1)  # blocks of keys that are not near
            total += n_heads * (n * (first + 1 + last) // 2 - n * far * size)
            for head in range(min(n_heads, self.stride)):
                alike = len(range(head, n_heads, self.stride))  # heads that start counting alike
                total += n * alike * size * ((far + head) // self.stride)
        return total


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
        seen = self.masks[0](query, key, head)
        for mask in self.masks[1:]:
            seen = seen & mask(query, key, head)
        return seen

    def band(self) -> Band | None:
        before, after = math.inf, math.inf
        for mask in self.masks:  # no := in a comprehension: torch.compile stumbles over it
            band = mask.band()
            if band is None:
                return None
            before, after = min(before, band[0]), min(after, band[1])
        return before, after

    def reach(self) -> int | None:
        reaches = [mask.reach() for mask in self.masks]
        return min((reach for reach in reaches if reach is not None), default=None)

    def pairs(self, query: int, past: int, n_heads: int) -> int:
        others = [mask for mask in self.masks if mask != Causal()]
        closed = others[0].causal_pairs(query, past, n_heads) if len(self.masks) == 2 and len(others) == 1 else None
        return super().pairs(query, past, n_heads) if closed is None else closed

    def within(self, query: Span, key: Span) -> Mask:
        masks = [mask.within(query, key) for mask in self.masks]
        left = tuple(mask for mask in masks if mask != Everything())
        return And(masks=left) if len(left) > 1 else left[0] if left else Everything()


class Or(Mask):
    """What any of the masks shows."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        seen = self.masks[0](query, key, head)
        for mask in self.masks[1:]:
            seen = seen | mask(query, key, head)
        return seen

    def reach(self) -> int | None:
        reaches = [mask.reach() for mask in self.masks]
        return None if None in reaches else max(reach for reach in reaches if reach is not None)

    def within(self, query: Span, key: Span) -> Mask:
        masks = tuple(mask.within(query, key) for mask in self.masks)
        return Everything() if Everything() in masks else Or(masks=masks)


class Not(Mask):
    """What the mask hides."""

    mask: Mask

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return ~self.mask(query, key, head)


class Heads(Mask):
    """Head by head: head i has the i-th mask, and the pattern repeats."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        each = [mask(query, key, head) & (head % len(self.masks) == i) for i, mask in enumerate(self.masks)]
        return torch.stack([*torch.broadcast_tensors(*each)]).any(0)

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
    q, k = query.as_queries(), key.as_keys()
    seen = None
    if mask != Everything():
        seen = mask(q, k, torch.arange(n_heads, device=query.position.device).view(1, -1, 1, 1))
    if q.document is None and k.document is None:
        return seen
    documents_q = torch.ones_like(q.position) if q.document is None else q.document
    documents_k = torch.ones_like(k.position) if k.document is None else k.document
    together = (documents_q == documents_k) & (documents_k > 0)
    return together if seen is None else seen & together


def _order(tokens: Tokens) -> Tensor:
    return tokens.position if tokens.order is None else tokens.order


def _flat(mask: Mask, kind: type[And] | type[Or]) -> tuple[Mask, ...]:
    return mask.masks if isinstance(mask, kind) else (mask,)


def _multiples(n: int, stride: int) -> int:
    """How many distances from 0 on are multiples of the stride, of n queries and the keys before each."""
    whole, rest = divmod(n, stride)
    return stride * whole * (whole + 1) // 2 + rest * (whole + 1)
