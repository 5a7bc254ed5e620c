"""The delta rule whose states forget each feature of keys at its own rate: S ← Diag(a) S, then as `delta_rule` has it.

Kimi Team 2025, arXiv:2510.26692, section 3. What is left of a key differs by feature, so products of a chunk are made
by blocks: between two blocks both are taken to the boundary of the later one, within a block every pair is written out.
No exponent is above 0, and decays are sums of numbers of one sign, which lose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.delta_rule import CHUNK, Chunk, handed_on
from anyformer.layers.linear_attention import by_segments, chunked, chunks_of, counted, left_of

BLOCK = 8  # tokens; it changes time and rounding, nothing else


def delta_rule_by_feature(
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

    q, k and `decay`, the logarithm of each step's, at most 0, are [batch, token, heads, key_dim], v [batch, token, heads,
    value_dim], `rate`, β, [batch, token, heads]; `begins` [batch or 1, token]: where a document does. `state` is the one before;
    None: zeros.
    """
    return by_segments(_segment, (q, k, v, decay, rate), begins, state, keeps)


def _segment(
    rows: Sequence[Tensor], begins: Tensor | None, state: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    tokens = rows[0].shape[1]
    n, size = chunks_of(tokens, CHUNK, BLOCK)
    # [batch, chunk, heads, token, …]; of queries, keys and decays [.., block, token of it, key_dim]
    q, k, v, decay, rate = (chunked(x, n, size).transpose(2, 3) for x in rows)
    block = min(BLOCK, size)
    q, k, decay = (x.unflatten(-2, (-1, block)) for x in (q, k, decay))
    ahead = decay.cumsum(-2)  # from a block's beginning to each token of it, and from each token to the block's end
    behind = F.pad(decay[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)
    whole = ahead[..., -1, :]  # of a block
    pairs, old = _pairs(q, k, decay, ahead, behind)
    since = F.pad(whole[..., :-1, :], (0, 0, 1, 0)).cumsum(-2)  # from the chunk's beginning to each block's
    until = F.pad(whole[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)
    grown = left_of((ahead + since[..., None, :]).flatten(-3, -2))
    left = left_of((behind + until[..., None, :]).flatten(-3, -2))
    if begins is not None:
        document = chunked(begins, n, size).cumsum(-1)[:, :, None]
        pairs, old = (x * (document[..., :, None] == document[..., None, :]) for x in (pairs, old))
        grown = grown * (document == 0)[..., None]
        left = left * (document == document[..., -1:])[..., None]
    q, k = q.flatten(-3, -2), k.flatten(-3, -2)
    chunk = Chunk(grown * q, grown * k, left * k, grown[..., -1, :, None])
    y, state = handed_on(pairs, old, chunk, v, rate[..., None], state, keeps)
    return y.flatten(1, 2)[:, :tokens], state


def _pairs(q: Tensor, k: Tensor, decay: Tensor, ahead: Tensor, behind: Tensor) -> tuple[Tensor, Tensor]:
    """What is left at token i of the products of its query, and of its key, with key j, [.., i, j] each; 0 for later keys.

    Of [.., block, token, key_dim].
    """
    n, block = k.shape[-3:-1]
    both = torch.stack((q, k), -2)  # [.., block, token, 2, key_dim]
    later = torch.ones(block, block, dtype=torch.bool, device=k.device).tril(-1)  # of i, j: j is before i
    # [.., i, j, key_dim]: all that is after j, up to i
    between = (decay[..., :, None, :] * later[..., None]).cumsum(-3)
    hidden = (~later).triu(1)[..., None]
    near = (k[..., None, :, :] * left_of(between.masked_fill(hidden, -torch.inf))) @ both.transpose(-1, -2)
    rows, keys = both * left_of(ahead)[..., None, :], k[..., :0, :, :]
    out = []
    for i in range(n):  # keys [.., blocks before, token, key_dim], by what is left of them where block i begins
        row = (rows[..., i, :, :, :].flatten(-3, -2) @ keys.flatten(-3, -2).transpose(-1, -2)).unflatten(-2, (block, 2))
        out.append(F.pad(torch.cat((row, near[..., i, :, :, :].transpose(-1, -2)), -1), (0, (n - 1 - i) * block)))
        if i + 1 < n:
            aged = keys * left_of(ahead[..., i : i + 1, -1:, :])
            keys = torch.cat((aged, k[..., i : i + 1, :, :] * left_of(behind[..., i : i + 1, :, :])), -3)
    pairs = torch.cat(out, -3)  # [.., token, 2, j]
    return pairs[..., 0, :], pairs[..., 1, :]


def delta_rule_by_feature_flops(query: int, past: int, *, heads: int, key_dim: int, value_dim: int) -> int:
    """The FLOPs for so many new tokens of a row: products, and the triangular systems as products of squares."""
    chunks = counted(query, past, CHUNK, BLOCK)
    # a chunk's blocks with themselves and with all before, of q and of k
    made = 2 * key_dim * (chunks.pairs + chunks.near)
    pairs = made + 2 * (chunks.pairs * 2 * value_dim + chunks.reading * key_dim + chunks.solved)
    return heads * (pairs + 2 * (2 * chunks.readers + chunks.writers) * key_dim * value_dim)
