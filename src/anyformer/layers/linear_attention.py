"""Linear attention with a decay: S_t = a_t S_{t-1} + k_t v_tᵀ and y_t = S_tᵀ q_t, by products of chunks of tokens.

The state-space duality of Dao & Gu 2024, arXiv:2405.21060, section 6: a chunk is attention without a softmax, and chunks hand
each other a state. Time is linear in the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64  # tokens; like SEGMENT it changes time and rounding, nothing else
SEGMENT = 512  # tokens that are worked on at once, forward and backward: what they need stays in a processor's cache

# Of logarithms: below it nothing is left. Numbers that are not far above the least normal one (e^-87) make others that are below,
# and processors take ten times as long for a product of those.
NOTHING = -60.0

# (rows of a segment, where documents begin in it, the state before, whether to give the state behind) → (y, that state)
Core = Callable[[Sequence[Tensor], Tensor | None, Tensor | None, bool], tuple[Tensor, Tensor | None]]


def by_segments(
    core: Core, rows: Sequence[Tensor], begins: Tensor | None, state: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    """What `core` makes of rows [batch, token, …], one segment after the other, each from the state of the one before."""
    pieces = list(zip(*(each.split(SEGMENT, 1) for each in rows), strict=True))
    starts = [None] * len(pieces) if begins is None else begins.split(SEGMENT, 1)
    outs: list[Tensor] = []
    for i, (piece, start) in enumerate(zip(pieces, starts, strict=True)):
        y, state = core(piece, start, state, keeps or i + 1 < len(pieces))
        outs.append(y)
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1), state


def chunks_of(n: int, chunk: int = CHUNK, block: int = 1) -> tuple[int, int]:
    """(how many chunks the `n` tokens of a segment are, tokens of one): the last is filled with tokens that do nothing.

    A chunk that is longer than a block is a multiple of it.
    """
    size = max(1, min(chunk, n))
    size = size if size < block else -(-size // block) * block
    return -(-n // size), size


class Chunks(NamedTuple):
    """What the chunks of a row are together."""

    pairs: int  # of tokens in the same chunk
    reading: int  # those in chunks that read a state
    near: int  # of tokens in the same block of a chunk
    solved: int  # a chunk's tokens, cubed: a system of them solved for each of them
    readers: int  # tokens of chunks that read a state
    writers: int  # tokens of chunks whose state somebody reads


def counted(query: int, past: int, chunk: int = CHUNK, block: int = 1) -> Chunks:
    """The chunks of so many new tokens after `past` ones, whose state is then read, and kept for those that follow."""
    full, rest = divmod(query, SEGMENT)
    n, size = chunks_of(rest, chunk, block) if rest else (0, 0)
    whole = full * SEGMENT // chunk
    tokens, first, last = whole * chunk + n * size, chunk if whole else size, size if n else chunk
    first, last = (0, 0) if past else (first, last)
    pairs, near = whole * chunk**2 + n * size**2, whole * chunk * block + n * size * min(block, size)
    return Chunks(pairs, pairs - first**2, near, whole * chunk**3 + n * size**3, tokens - first, tokens - last)


def chunked(x: Tensor, n: int, size: int) -> Tensor:
    """[batch, chunk, token of it, …] of x [batch, token, …], zeros behind the last token."""
    missing = n * size - x.shape[1]
    x = F.pad(x, (*(0, 0) * (x.dim() - 2), 0, missing)) if missing else x
    return x.unflatten(1, (n, size))


def decays(logarithm: Tensor, begins: Tensor | None) -> tuple[Tensor, Tensor]:
    """(how much of what was before a chunk is left at each token [..., token], and of its token j at i [..., i, j]).

    Of logarithms [..., token of a chunk], at most 0; nothing is left of what was before a document `begins`, of that shape or
    one that expands to it. Sums are in float64, whose differences are exact also of strong decays (float32's are wrong by
    1e-5), and no exponent is above 0.
    """
    total = logarithm.double().cumsum(-1)
    apart = total[..., :, None] - total[..., None, :]
    hidden = torch.ones(apart.shape[-2:], dtype=torch.bool, device=apart.device).triu(1)
    old = None
    if begins is not None:
        document = begins.cumsum(-1)
        hidden, old = hidden | (document[..., :, None] != document[..., None, :]), document > 0
    total = total if old is None else total.masked_fill(old, -torch.inf)
    return left_of(total.to(logarithm.dtype)), left_of(apart.masked_fill(hidden, -torch.inf).to(logarithm.dtype))


def left_of(logarithm: Tensor) -> Tensor:
    """e^x of a decay's logarithm x, or 0 where that is nothing beside anything."""
    return F.threshold(logarithm, NOTHING, -torch.inf).exp()


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, begins: Tensor | None, state: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    """(y [batch, token, heads, value_dim], the state behind the last token [batch, heads, key_dim, value_dim] if it `keeps`).

    q and k are [batch, token, groups, key_dim], v [batch, token, heads, value_dim], a group's heads beside each other; `decay`
    [batch, token, heads] is the logarithm of each step's, at most 0; `begins` [batch or 1, token]: where a document does.
    `state` is the one before; None: zeros.
    """
    return by_segments(_segment, (q, k, v, decay), begins, state, keeps)


def _segment(
    rows: Sequence[Tensor], begins: Tensor | None, state: Tensor | None, keeps: bool
) -> tuple[Tensor, Tensor | None]:
    q, k, v, decay = rows
    tokens, groups = q.shape[1:3]
    n, size = chunks_of(tokens)
    each = v.shape[2] // groups
    # [batch, chunk, group, token, key_dim]; [batch, chunk, group, head of it, token, value_dim]; [.., token]
    q, k = (chunked(x, n, size).transpose(2, 3) for x in (q, k))
    v = chunked(v, n, size).unflatten(3, (groups, each)).permute(0, 1, 3, 4, 2, 5)
    begins = None if begins is None else chunked(begins, n, size)[:, :, None, None]
    grown, left = decays(chunked(decay, n, size).unflatten(3, (groups, each)).permute(0, 1, 3, 4, 2), begins)
    y = (q @ k.transpose(-1, -2)).unsqueeze(3) * left @ v

    states = [None if state is None else state.to(v.dtype).unflatten(1, (groups, each))]  # before each chunk
    handed = n if keeps else n - 1
    if handed:
        until = left[:, :handed, ..., -1, :, None]  # how much of a token is left at its chunk's end
        # [batch, chunk, group, token, head · value_dim]: one product for all heads of a group
        values = (v[:, :handed] * until).transpose(3, 4).flatten(4)
        new = (k[:, :handed].transpose(-1, -2) @ values).unflatten(-1, (each, -1)).transpose(3, 4).unbind(1)
        whole = grown[..., -1, None, None].unbind(1)
        for write, rest in zip(new, whole, strict=False):
            states.append(write if states[-1] is None else torch.addcmul(write, rest, states[-1]))
    held = [before for before in states[:n] if before is not None]
    if held:
        first = n - len(held)
        before = torch.stack(held, 1).transpose(3, 4).flatten(4)  # [batch, chunk, group, key_dim, head · value_dim]
        read = (q[:, first:] @ before).unflatten(-1, (each, -1)).transpose(3, 4)
        y = torch.cat((y[:, :first], y[:, first:] + read * grown[:, first:, ..., None]), 1)
    y = y.permute(0, 1, 4, 2, 3, 5).flatten(3, 4).flatten(1, 2)[:, :tokens]
    last = states[-1]
    return y, last.flatten(1, 2) if keeps and last is not None else None


def linear_attention_flops(query: int, past: int, *, groups: int, heads: int, key_dim: int, value_dim: int) -> int:
    """The FLOPs of the products for so many new tokens of a row: pairs within chunks, and states written and read."""
    chunks = counted(query, past)
    pairs = 2 * chunks.pairs * (groups * key_dim + heads * value_dim)
    return pairs + 2 * (chunks.readers + chunks.writers) * heads * key_dim * value_dim
