"""Rows of which several processes have a stretch each: context parallelism, by gathering (arXiv:2407.21783, section 3.3.2).

What a token's features become is its own process's work. Tokens meet in what attention stores of them: there each process has
what all have stored, and gives back the gradient of what is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import Store
from anyformer.layers.tokens import Tokens


class Stretches(Protocol):
    """The processes that share rows, as one of them sees them. All make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which of them this is: the first has the first tokens."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """All tensors [rank, …] of one shape […], contiguous."""
        ...

    def scatter(self, x: Tensor) -> Tensor:
        """This rank's […] of the sum over ranks of tensors [rank, …], contiguous."""
        ...

    def exchange(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> None:
        """Send contiguous tensors to ranks, and receive into others from ranks, all at once."""
        ...


def stretch(n: int, rank: int, size: int) -> slice:
    """The places that a rank has of n."""
    return slice(rank * n // size, (rank + 1) * n // size)


def lengths(n: int, size: int) -> list[int]:
    """How many of n places each rank has."""
    return [(here := stretch(n, rank, size)).stop - here.start for rank in range(size)]


def meeting(spec: AttentionSpec, n: int, size: int, *, joins: bool) -> Literal["ring", "heads", "gathering"]:
    """How the tokens of rows of n, of which each of `size` processes has a stretch, meet in an attention.

    `joins`: values of parts of a row can be joined; on CPUs, where rows are plain and no weights are dropped.
    """
    if n < size:
        return "gathering"
    if joins and spec.goes_round(n):
        return "ring"
    return "heads" if spec.shared_by_heads(size) else "gathering"


def cut(x: Tensor, stretches: Stretches) -> Tensor:
    """This process's tokens of x [batch or 1, token]."""
    return x[:, stretch(x.shape[1], stretches.rank, stretches.size)]


def joined(x: Tensor, n: int, stretches: Stretches, axis: int) -> Tensor:
    """The n tokens along `axis` of which each process has a stretch x; the gradients of all processes add up."""
    longest = -(-n // stretches.size)
    filled = F.pad(x, (*(0, 0) * (x.dim() - 1 - axis % x.dim()), 0, longest - x.shape[axis]))
    parts = _Gathered.apply(filled, stretches).unbind(0)
    each = zip(parts, lengths(n, stretches.size), strict=True)
    return torch.cat([part.narrow(axis, 0, length) for part, length in each], axis)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stretches: Stretches) -> Tensor:
        """[rank, …] of x […]."""
        ctx.stretches = stretches
        return stretches.gather(x.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.stretches.scatter(grads[0].contiguous()), None


class StretchedStore(Store):
    """What a mixer call stores of all tokens, and of the encoder's, where each process makes it of a stretch of them."""

    def __init__(self, stretches: Stretches, keys: Tokens, memory: Tokens | None = None) -> None:
        self.stretches, self.keys, self.memory = stretches, keys, memory

    def extend(self, new: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        assert self.keys is not None
        return {name: joined(x, self.keys.n, self.stretches, -2) for name, x in new.items()}

    def once(self, make: Any) -> Mapping[str, Tensor]:
        assert self.memory is not None
        return {name: joined(x, self.memory.n, self.stretches, -2) for name, x in make().items()}

    def __iter__(self) -> StretchedStore:
        return self

    def __next__(self) -> StretchedStore:
        """Itself, for each mixer call without end."""
        return self


def stretched(
    stretches: Stretches, ids: Tensor, tokens: Tokens, memory: Tokens | None = None
) -> tuple[Tensor, Tokens, StretchedStore]:
    """(this process's ids [batch, token], what is known of them, the store for each mixer call) of whole rows."""
    whole = replace(tokens, name="whole rows")
    here = stretch(tokens.n, stretches.rank, stretches.size)
    own = tokens.each(lambda fact: fact[:, here])
    if tokens.span is not None:
        own = replace(own, span=(tokens.span[0] + here.start, tokens.span[0] + here.stop))
    return ids[:, here], own, StretchedStore(stretches, whole, memory)
