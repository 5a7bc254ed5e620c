"""Causal attention of rows of which several processes have a stretch each, without ever holding all keys: a ring.

A later stretch attends to an earlier one where the keys are sent to, or, so that all have as much to do, where the queries are
sent to: Li et al. 2023 (DistFlashAttn), arXiv:2310.03294, section 3.1. After n // 2 turns each of n processes has computed as
many pairs of stretches as any other, give or take one. Parts of a row are joined by the logarithms of their sums in float32
(Liu et al. 2023, arXiv:2310.01889), and the backward pass of each takes the sum of the whole row: values and gradients are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyformer.kernels import blocks
from anyformer.kernels.blocked import Blocked, Planned
from anyformer.layers.context import SoftmaxOptions
from anyformer.layers.execution import exact, product_dtype
from anyformer.layers.mask import Mask
from anyformer.layers.stretch import Stretches, lengths
from anyformer.layers.tokens import Bias, Tokens


class Ring:
    """The kernel of a pass over whole rows of n tokens, of which this process has a stretch."""

    name = "ring"
    brings = True

    def __init__(self, stretches: Stretches, n: int) -> None:
        self.stretches = stretches
        self.sizes = lengths(n, stretches.size)

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Planned:
        """The blocks of the pairs within this process's stretch."""
        return Blocked().prepare(mask, bias, query, key, n_heads)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Planned, how: SoftmaxOptions) -> tuple[Tensor, None]:
        """Values [batch, heads, query, head_dim] of this process's queries, keys and values, and no weights."""
        dtype = product_dtype(q)
        q, k, v = (x.to(dtype) for x in (q, k, v))
        seen = seen._replace(added=None if seen.added is None else seen.added.to(dtype))
        return _Ring.apply(q, k, v, self, seen, how.scale), None  # type: ignore[return-value]


class _Turn(NamedTuple):
    """Whom this process sends to and receives from, and what: the keys of the earlier stretch, or the queries of the later."""

    to: int
    source: int
    sends: str  # "keys", "queries" or ""
    receives: str


def _turns(rank: int, size: int) -> Iterator[_Turn]:
    """Each pair of stretches once: as many turns apart as they are, or as they are the other way round."""
    for t in range(1, size // 2 + 1):
        to, source, once = (rank + t) % size, (rank - t) % size, 2 * t == size
        sends = "keys" if to > rank else "" if once else "queries"
        receives = "keys" if source < rank else "" if once else "queries"
        yield _Turn(to, source, sends, receives)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: Ring, seen: Planned, scale: float) -> Tensor:
        """Values [batch, heads, query, head_dim]; k and v are [batch, kv heads, key, head_dim] of the same tokens."""
        found = _part(q, k, v, scale, seen)
        for turn in _turns(ring.stretches.rank, ring.stretches.size):
            for part in _values_of(turn, ring, q, k, v, found[1], scale):
                found = blocks.joined(*found, *part)
        out, lse = found[0].to(q.dtype), found[1]
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how = ring, seen, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        ring, seen, scale = ctx.how
        given = grad.contiguous(), q, k, v, out, lse
        total = [exact(x) for x in _gradients(*given, scale, seen)]
        for turn in _turns(ring.stretches.rank, ring.stretches.size):
            for i, more in _gradients_of(turn, ring, *given, scale):
                total[i] += more
        for_q, for_k, for_v = (x.to(q.dtype) for x in total)
        return for_q, for_k, for_v, None, None, None


def _values_of(
    turn: _Turn, ring: Ring, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """What this process's queries see in a turn: (values, the logarithms of the sums), here or where they were sent."""
    found = _exchanged(ring, turn, {"keys": (k, v), "queries": (q,)})
    answer = _part(found[0], k, v, scale) if turn.receives == "queries" else ()
    if turn.receives == "keys":
        yield _part(q, found[0], found[1], scale)
    if back := _answered(ring, turn, {"queries": answer}, {"queries": (q, lse)}):
        yield back[0], back[1]


def _gradients_of(
    turn: _Turn, ring: Ring, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> Iterator[tuple[int, Tensor]]:
    """Gradients of queries (0), keys (1) and values (2) of this process that a turn gives, here and where they were sent."""
    found = _exchanged(ring, turn, {"keys": (k, v), "queries": (grad, q, out, lse)})
    answer: Sequence[Tensor] = ()
    if turn.receives == "keys":
        mine, *answer = _gradients(grad, q, found[0], found[1], out, lse, scale)
        yield 0, mine
    elif turn.receives:
        theirs, their_q, their_out, their_lse = found
        for_q, for_k, for_v = _gradients(theirs, their_q, k, v, their_out, their_lse, scale)
        yield 1, for_k
        yield 2, for_v
        answer = (for_q,)
    back = _answered(ring, turn, {turn.receives: answer}, {"keys": (k, v), "queries": (q,)})
    yield from enumerate(back, 1 if turn.sends == "keys" else 0)


Named = Mapping[str, Sequence[Tensor]]


def _exchanged(ring: Ring, turn: _Turn, given: Named) -> list[Tensor]:
    """What another process gives of its stretch, as this one gives of its own."""
    n = ring.sizes[turn.source]
    found = [x.new_empty(*x.shape[:2], n, *x.shape[3:]) for x in given.get(turn.receives, ())]
    sent = [(turn.to, x.contiguous()) for x in given.get(turn.sends, ())]
    ring.stretches.exchange(sent, [(turn.source, x) for x in found])
    return found


def _answered(ring: Ring, turn: _Turn, answer: Named, like: Named) -> list[Tensor]:
    """What the one that was sent to has made of it, each shaped as what is here."""
    found = [torch.empty_like(x).contiguous() for x in like.get(turn.sends, ())]
    sent = [(turn.source, x.contiguous()) for x in answer.get(turn.receives, ())]
    ring.stretches.exchange(sent, [(turn.to, x) for x in found])
    return found


def _whole(q: Tensor, k: Tensor) -> Planned:
    """One piece of all queries and all keys."""
    heads, n, m = q.shape[1], q.shape[2], k.shape[2]
    pieces = [-1, 0, heads, 1, 0, n, 1, 0, m, 1, -1, 1, 0]
    return Planned(pieces, torch.empty(0, dtype=torch.long, device=q.device), None, heads * n * m)


def _part(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Planned | None = None) -> tuple[Tensor, Tensor]:
    """(values, the logarithms of the sums) of some queries on some keys: all pairs, or those that are seen."""
    pieces, tokens, added, pairs = seen or _whole(q, k)
    return blocks.attention(q, k, v, added, None, tokens, blocks.seeded(0.0), pieces, pairs, scale, None, 0.0)


def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, seen: Planned | None = None
) -> list[Tensor]:
    """Of q, k and v, by the values and sums of whole rows."""
    pieces, tokens, added, pairs = seen or _whole(q, k)
    found = blocks.backward(
        grad, q, k, v, added, None, out, lse, tokens, blocks.seeded(0.0), pieces, pairs, scale, None, 0.0, False
    )
    return list(found[:3])
