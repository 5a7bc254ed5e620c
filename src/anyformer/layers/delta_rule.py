"""The gated delta rule: S ← a S, then S ← S + k (β (v − Sᵀ k))ᵀ, and y = Sᵀ q: a key's value is written anew, not added to.

Yang et al. 2024, arXiv:2412.06464, section 3.3: a chunk's writes are one triangular system (the WY form), and chunks hand each
other a state. Time is linear in the length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.layers.linear_attention import by_segments, chunked, chunks_of, counted, decays


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
    n, size = chunks_of(tokens)
    # [batch, chunk, heads, token, …]
    q, k, v = (chunked(x, n, size).transpose(2, 3) for x in (q, k, v))
    rate = chunked(rate, n, size).transpose(2, 3)[..., None]
    begins = None if begins is None else chunked(begins, n, size)[:, :, None]
    grown, left = decays(chunked(decay, n, size).transpose(2, 3), begins)
    grown = grown[..., None]
    pairs, old = ((x @ k.transpose(-1, -2)).repeat_interleave(heads // of_keys, 2) * left for x in (q, k))
    q, k = (x.repeat_interleave(heads // of_keys, 2) for x in (q, k))
    # What each token writes where no state was, and what it takes back of each number of a state.
    writes = torch.linalg.solve_triangular(
        rate * old, rate * torch.cat((v, grown * k), -1), upper=False, unitriangular=True
    )
    written, taken = (each.unbind(1) for each in writes.split((v.shape[-1], k.shape[-1]), -1))
    reads, pairs = (grown * q).unbind(1), pairs.unbind(1)
    keys = (left[..., -1, :, None] * k).transpose(-1, -2).unbind(1)
    whole = grown[..., -1:, :].unbind(1)
    outs: list[Tensor] = []
    state = None if state is None else state.to(v.dtype)
    for i in range(n):
        new = written[i] if state is None else written[i] - taken[i] @ state
        outs.append(pairs[i] @ new if state is None else pairs[i] @ new + reads[i] @ state)
        if keeps or i + 1 < n:
            write = keys[i] @ new
            state = write if state is None else torch.addcmul(write, whole[i], state)
    y = torch.stack(outs, 1).transpose(2, 3).flatten(1, 2)[:, :tokens]
    return y, state if keeps else None


def delta_rule_flops(query: int, past: int, *, key_heads: int, heads: int, key_dim: int, value_dim: int) -> int:
    """The FLOPs for so many new tokens of a row: products, and the triangular systems counted as products of whole squares."""
    chunks = counted(query, past)
    pairs = 2 * chunks.pairs * (2 * key_heads * key_dim + heads * value_dim + heads * (key_dim + value_dim))
    return pairs + 2 * (2 * chunks.readers + chunks.writers) * heads * key_dim * value_dim
