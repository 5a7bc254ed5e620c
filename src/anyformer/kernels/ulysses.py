"""Attention of rows of which several processes have a stretch each, by heads: Jacobs et al. 2023 (Ulysses), arXiv:2309.14509.

Before attention each process gives the others their heads of its tokens' queries, keys and values, and so has whole rows of some
of the heads, which any kernel computes under any mask; afterwards it gets all heads of its own tokens. All have as much to do,
and a process holds no more numbers of queries, keys and values than those of its own stretch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyformer.kernels.ring import Ring
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import Dropout, Kernel, SoftmaxOptions
from anyformer.layers.execution import product_dtype
from anyformer.layers.mask import Mask
from anyformer.layers.stretch import Stretches, lengths, meeting
from anyformer.layers.tokens import Bias, Tokens


class Ulysses:
    """Another kernel, in a pass over whole rows of which this process has a stretch."""

    brings = True

    def __init__(self, kernel: Kernel, stretches: Stretches, whole: Tokens) -> None:
        self.kernel, self.stretches, self.whole = kernel, stretches, whole
        self.name, self.lengths = f"ulysses {kernel.name}", lengths(whole.n, stretches.size)

    def prepare(self, mask: Mask, bias: Bias | None, query: Tokens, key: Tokens, n_heads: int) -> Any:
        """What the kernel prepares of whole rows and this process's heads."""
        own = None if bias is None else lambda query, key: self._own(bias(query, key), 1)
        return self.kernel.prepare(mask, own, self.whole, self.whole, n_heads // self.stretches.size)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, seen: Any, how: SoftmaxOptions) -> tuple[Tensor, None]:
        """Values [batch, heads, query, head_dim] of this process's queries, keys and values, and no weights."""
        assert how.scores is None
        q, k, v = _Exchanged.apply(self, True, *(x.to(product_dtype(q)) for x in (q, k, v)))  # type: ignore[misc]
        y, _ = self.kernel(q, k, v, seen, how._replace(sink=self._own(how.sink, 0)))
        return _Exchanged.apply(self, False, y)[0], None  # type: ignore[index]

    def _own(self, x: Tensor | None, axis: int) -> Tensor | None:
        """This process's of all heads along an axis; as it is, what is one for all of them."""
        return x if x is None or x.shape[axis] == 1 else x.chunk(self.stretches.size, axis)[self.stretches.rank]

    def whole_rows(self, *each: Tensor) -> list[Tensor]:
        """All tokens of this process's heads [batch, heads / n, token, width], given its tokens of all heads."""
        chunks = [x.chunk(self.stretches.size, 1) for x in each]
        return self._exchanged(chunks, self.lengths, 2)

    def own_rows(self, *each: Tensor) -> list[Tensor]:
        """This process's tokens of all heads [batch, heads, own, width], given all tokens of its heads."""
        chunks = [x.split(self.lengths, 2) for x in each]
        return self._exchanged(chunks, [self.lengths[self.stretches.rank]] * self.stretches.size, 1)

    def _exchanged(self, each: Sequence[Sequence[Tensor]], tokens: Sequence[int], axis: int) -> list[Tensor]:
        """Of each tensor the parts of so many tokens that the processes have for this one, joined; it gives them theirs."""
        rank, sends, receives, found = self.stretches.rank, [], [], []
        for parts in each:
            own = parts[rank]
            got = [own if i == rank else own.new_empty(*own.shape[:2], n, own.shape[3]) for i, n in enumerate(tokens)]
            sends += [(i, part.contiguous()) for i, part in enumerate(parts) if i != rank]
            receives += [(i, part) for i, part in enumerate(got) if i != rank]
            found.append(got)
        self.stretches.exchange(sends, receives)
        return [torch.cat(got, axis) for got in found]


def over_stretches(
    kernels: Mapping[str, Kernel],
    attentions: Mapping[str, AttentionSpec],
    stretches: Stretches,
    whole: Tokens,
    dropout: Dropout | None,
    device: str,
) -> Mapping[str, Kernel]:
    """The kernels by the attention's key, for rows that processes have stretches of, as their tokens meet (`meeting`).

    A GPU has no fast way here to parts that are joined.
    """
    joins = device == "cpu" and whole.span is not None and (dropout is None or not dropout.attention)

    def found(kernel: Kernel, spec: AttentionSpec) -> Kernel:
        way = meeting(spec, whole.n, stretches.size, joins=joins)
        if way == "ring":
            return Ring(stretches, whole.n)
        return Ulysses(kernel, stretches, whole) if way == "heads" else kernel

    return {key: found(kernel, attentions[key]) for key, kernel in kernels.items()}


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ulysses: Ulysses, whole: bool, *each: Tensor) -> tuple[Tensor, ...]:
        """Whole rows [batch, own head, token, d] of each, given this process's tokens [batch, head, own token, d]; or back."""
        ctx.ulysses, ctx.whole = ulysses, whole
        return tuple(ulysses.whole_rows(*each) if whole else ulysses.own_rows(*each))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None, *(ctx.ulysses.own_rows(*grads) if ctx.whole else ctx.ulysses.whole_rows(*grads))
