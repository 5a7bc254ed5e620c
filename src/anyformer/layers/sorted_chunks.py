"""Attention of tokens in sorted chunks by PyTorch's fused operator, rounds joined, of which only values and sums stay.

Kitaev et al. 2020, arXiv:2001.04451, section 2: equation 2 in each round, equation 6 over rounds. The backward pass gives
the operator the values and sums of all rounds (Dao et al. 2022, arXiv:2205.14135, section 3.1), which makes its gradients exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

aten = torch.ops.aten
AT_ONCE = 2**14  # tokens of all rounds whose chunks are computed together: more no longer fit into a processor's cache


class Sorted(NamedTuple):
    """What is sorted how: `rounds` orders of n tokens one after the other, in chunks that see `near` chunks around them."""

    order: Tensor  # [rows, round · token]: token t of round r is number r · n + t
    position: Tensor  # [rows or 1, token]
    document: Tensor | None  # likewise, 0 for padding; None: all are of one document
    rounds: int
    chunk: int
    near: range  # from the first chunk that one sees to behind the last, itself being 0
    causal: bool


def sorted_attention(q: Tensor, k: Tensor, v: Tensor, how: Sorted) -> Tensor:
    """Values [row, token, width] of q, k and v of that shape and one dtype; a token sees itself only where it sees no other."""
    return _SortedAttention.apply(q, k, v, how)  # pyright: ignore[reportReturnType]


class _SortedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: Sorted) -> Tensor:
        """Values [row, token, width], of some rows at a time."""
        found: list[tuple[Tensor, Tensor]] = []
        for at in _groups(how):
            y, of_rounds = aten._scaled_dot_product_flash_attention_for_cpu(
                at.chunks(q), at.around(at.chunks(k)), at.around(at.chunks(v)), attn_mask=at.added(q), scale=1.0
            )
            y, of_rounds = at.by_round(y), at.by_round(of_rounds[..., None])
            y = y if how.rounds == 1 else y * of_rounds.softmax(1)
            found.append((_summed(y).to(q.dtype), of_rounds.logsumexp(1)[..., 0]))
        out, sums = _rows(found)
        ctx.how = how
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, sums = ctx.saved_tensors
        found: list[tuple[Tensor, ...]] = []
        for at in _groups(ctx.how):
            for_q, *around = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                at.chunks(grad),
                at.chunks(q),
                at.around(at.chunks(k)),
                at.around(at.chunks(v)),
                at.chunks(out),
                at.chunks(sums[..., None])[..., 0],
                0.0,
                False,
                attn_mask=at.added(q),
                scale=1.0,
            )
            found.append(tuple(_summed(at.by_round(x)) for x in (for_q, *map(at.gathered, around))))
        return *_rows(found), None


def _summed(by_round: Tensor) -> Tensor:
    """The sum [row, token, width] over rounds [row, round, token, width]."""
    return by_round[:, 0] if by_round.shape[1] == 1 else by_round.sum(1)


def _rows(found: Sequence[tuple[Tensor, ...]]) -> Iterator[Tensor]:
    """Each tensor of all rows, of what groups of them have."""
    return (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*found, strict=True))


def _groups(how: Sorted) -> Iterator[_Places]:
    """Rows that are computed together, as many as a processor's cache holds."""
    rows, tokens = how.order.shape
    size = max(1, AT_ONCE // tokens)
    return (_Places(how, slice(start, min(rows, start + size))) for start in range(0, rows, size))


class _Places:
    """Where the tokens of some rows stand once they are sorted."""

    def __init__(self, how: Sorted, here: slice) -> None:
        self.how, self.here = how, here
        order = how.order[here]
        self.rows, self.n = len(order), order.shape[1] // how.rounds
        first = torch.arange(self.rows, device=order.device)[:, None]
        self.token = order % self.n
        self.taken = (self.token + first * self.n).flatten()
        place = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
        self.back = (place + first * order.shape[1]).flatten()

    def chunks(self, x: Tensor) -> Tensor:
        """The x [row, token, width] of all rows, sorted: [row, chunk, of it, width]."""
        some = x[self.here].reshape(-1, x.shape[-1])
        return some.index_select(0, self.taken).view(self.rows, -1, self.how.chunk, x.shape[-1])

    def around(self, chunks: Tensor) -> Tensor:
        """[row, chunk, of those it sees, width] of chunks [row, chunk, of it, width]: a view of neighbours that overlap."""
        n, near = chunks.shape[1], self.how.near
        round_about = chunks.index_select(1, torch.arange(near.start, n + near.stop - 1) % n)
        return round_about.flatten(1, 2).unfold(1, len(near) * self.how.chunk, self.how.chunk).mT

    def gathered(self, around: Tensor) -> Tensor:
        """The sum, for each chunk [row, chunk, of it, width], of what those that see it have for it."""
        n, parts = around.shape[1], around.split(self.how.chunk, 2)
        total = parts[-self.how.near.start].contiguous()
        for step, part in zip(self.how.near, parts, strict=True):
            if step:
                over = step % n  # chunks go round
                total[:, over:] += part[:, : n - over]
                total[:, :over] += part[:, n - over :]
        return total

    def by_round(self, chunks: Tensor) -> Tensor:
        """[row, round, token, width] of what chunks [row, chunk, of it, width] have, each token in its place."""
        flat = chunks.reshape(-1, chunks.shape[-1]).index_select(0, self.back)
        return flat.view(self.rows, self.how.rounds, self.n, -1)

    def added(self, q: Tensor) -> Tensor:
        """What is added to scores [row, chunk, of it, of those it sees]: a token itself gives way to others, later ones to all.

        Scores are at most the query's length, keys having length 1 at most: no constant that hides one rounds sums away. It is a
        power of two, by which positions are multiplied exactly.
        """
        hidden = (2 * q[self.here].norm(dim=-1).amax().float() + 100).log2().ceil().exp2()
        of_q, of_k = self._pairs(self.how.position * hidden)
        if self.how.causal:  # once for itself, more often for later ones
            added = (of_q - hidden - of_k).clamp_(max=0)
        else:
            added = torch.where(of_q == of_k, -hidden, 0.0)
        if self.how.document is not None:
            of_q, of_k = self._pairs(self.how.document)
            added.masked_fill_(of_q != of_k, -torch.inf)
        return added.to(q.dtype)

    def _pairs(self, fact: Tensor) -> tuple[Tensor, Tensor]:
        """Facts of tokens [row or 1, token] of queries [row, chunk, of it, 1] and of the keys that they see."""
        some = fact if len(fact) == 1 else fact[self.here]
        chunks = some.expand(self.rows, -1).gather(1, self.token).view(self.rows, -1, self.how.chunk, 1)
        return chunks, self.around(chunks).mT
