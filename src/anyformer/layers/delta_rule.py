"""The gated delta rule: S ← a S, then S ← S + k (β (v − Sᵀ k))ᵀ, and y = Sᵀ q: a key's value is written anew, not added to.

Yang et al. 2024, arXiv:2412.06464, section 3.3: a chunk's writes are one triangular system (the WY form), and chunks hand each
other a state. Time is linear in the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.layers.linear_attention import by_segments, chunked, chunks_of, counted, decays

CHUNK = 32  # tokens; it changes time and rounding, nothing else


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    rate: Tensor,
    begins: Tensor | None,
    state: Tensor | None,
    keeps: bool,
) -> tuple[Tensor, Tensor | None]:
    """(y [batch, token, heads, value_dim], the state behind the last token [batch, heads, key_dim, value_dim] if it `keeps`).

    q and k are [batch, token, key heads, key_dim], v [batch, token, heads, value_dim], the heads of a key's beside each other;
    `decay` [batch, token, heads] is the logarithm of each step's, at most 0; `rate` [batch, token, heads] is β;
    `begins` [batch or 1, token]: where a document does. `state` is the one before; None: zeros.
    """
    return by_segments(_segment, (q, k, v, decay, rate), begins, state, keeps)


def _segment(
    rows: Sequence[Tensor], begins: Tensor | None, state: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    q, k, v, decay, rate = rows
    tokens, of_keys, heads = q.shape[1], q.shape[2], v.shape[2]
    n, size = chunks_of(tokens, CHUNK)
    # [batch, chunk, heads, token, …]
    q, k, v = (chunked(x, n, size).transpose(2, 3) for x in (q, k, v))
    rate = chunked(rate, n, size).transpose(2, 3)[..., None]
    begins = None if begins is None else chunked(begins, n, size)[:, :, None]
    grown, left = decays(chunked(decay, n, size).transpose(2, 3), begins)
    grown = grown[..., None]
    each = heads // of_keys
    pairs, old = (by_head(x @ k.transpose(-1, -2), each) * left for x in (q, k))
    q, k = by_head(q, each), by_head(k, each)
    until = left[..., -1, :, None]
    y, state = handed_on(pairs, old, Chunk(grown * q, grown * k, until * k, grown[..., -1:, :]), v, rate, state, keeps)
    return y.flatten(1, 2)[:, :tokens], state


def by_head(x: Tensor, each: int) -> Tensor:
    """What key heads have, the third dimension of x, for each of their heads, which lie beside each other."""
    return x.unsqueeze(3).expand(*x.shape[:3], each, *x.shape[3:]).flatten(2, 3)


class Chunk(NamedTuple):
    """The queries and keys [batch, chunk, heads, token, key_dim] of chunks, by what decays have left."""

    reads: Tensor  # queries, of a state before the chunk
    olds: Tensor  # keys, of such a state
    writes: Tensor  # keys, until the chunk's end
    whole: Tensor  # of a state, behind the chunk [batch, chunk, heads, 1 or key_dim, 1]


def handed_on(
    pairs: Tensor, old: Tensor, chunk: Chunk, v: Tensor, rate: Tensor, state: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    """(y [batch, chunk, token, heads, value_dim], the state behind the last chunk if it `keeps`).

    `pairs` and `old` [batch, chunk, heads, i, j] are what is left at i of the products of its query and its key with key j,
    v [batch, chunk, heads, token, value_dim], `rate` [.., token, 1].
    """
    # Solved for each token alone, which takes half the time of a system that is solved for values and keys.
    solved = torch.linalg.solve_triangular(rate * old, rate[..., 0].diag_embed(), upper=False, unitriangular=True)
    # What each token writes where no state was, and what it takes back of each number of a state, from the first that is read.
    first = 1 if state is None else 0
    written, taken = (solved @ v).unbind(1), (solved[:, first:] @ chunk.olds[:, first:]).unbind(1)
    reads, pairs_of, keys = chunk.reads.unbind(1), pairs.unbind(1), chunk.writes.transpose(-1, -2).unbind(1)
    outs: list[Tensor] = []
    state = None if state is None else state.to(v.dtype)
    n = len(reads)
    for i, whole in enumerate(chunk.whole.unbind(1)):
        new = written[i] if state is None else written[i] - taken[i - first] @ state
        outs.append(pairs_of[i] @ new if state is None else pairs_of[i] @ new + reads[i] @ state)
        if keeps or i + 1 < n:
            write = keys[i] @ new
            state = write if state is None else torch.addcmul(write, whole, state)
    return torch.stack(outs, 1).transpose(2, 3), state if keeps else None


def delta_rule_flops(query: int, past: int, *, key_heads: int, heads: int, key_dim: int, value_dim: int) -> int:
    """The FLOPs for so many new tokens of a row: products, and the triangular systems as products of squares."""
    chunks = counted(query, past, CHUNK)
    products = chunks.pairs * (2 * key_heads * key_dim + 2 * heads * value_dim) + chunks.reading * heads * key_dim
    pairs = 2 * (products + chunks.solved * heads)
    return pairs + 2 * (2 * chunks.readers + chunks.writers) * heads * key_dim * value_dim
