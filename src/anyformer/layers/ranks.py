"""Where processes meet that each have a part of a layer: tensor parallelism. Shoeybi et al. 2019, arXiv:1909.08053, section 3.

A split mixer is computed by each rank with its heads or features; what they write adds up (`summed`), as do the gradients of
what they all read (`entering`). A split table has some of the rows on each rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class Ranks(Protocol):
    """The processes that have the parts of one layer, as one of them sees them. All make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which of them this is."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def reduce(self, x: Tensor, *, largest: bool = False) -> Tensor:
        """The sum over ranks, or the largest, of tensors of one shape: in the place of x, contiguous, the same bits on all."""
        ...


def entering(x: Tensor, ranks: Ranks) -> Tensor:
    """What every rank has alike, as its part of a layer reads it: the gradients of the parts add up."""
    return _Entering.apply(x, ranks)


def summed(x: Tensor, ranks: Ranks) -> Tensor:
    """The sum over ranks of what their parts of a layer write; from there on all have it alike, and its gradient."""
    return _Summed.apply(x, ranks)


def alike(x: Tensor, ranks: Ranks) -> Tensor:
    """What every rank makes alike within a split layer, of which one gradient counts, not that of each."""
    return _Alike.apply(x, ranks)


class _Entering(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        """X […] as it is."""
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.ranks.reduce(grads[0].clone(memory_format=torch.contiguous_format)), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        """The sum over ranks of x […]."""
        return ranks.reduce(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], None


class _Alike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        """X […] as it is."""
        ctx.size = ranks.size
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0] / ctx.size, None


@dataclass(frozen=True)
class SplitRows:
    """Which rows of a table this rank has: those of its weight, from `first` on, of `total` over all ranks."""

    first: int
    total: int
    ranks: Ranks

    def places(self, ids: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """(whether an id's row is one of this rank's n, which of them: 0 for another rank's, -1 for nobody's), of their shape."""
        here, known = (ids >= self.first) & (ids < self.first + n), (ids >= 0) & (ids < self.total)
        return here, torch.where(here, ids - self.first, torch.where(known, 0, -1))

    def lookup(self, ids: Tensor, weight: Tensor) -> Tensor:
        """The rows of ids [batch, token], each from the rank that has it, [batch, token, width].

        Raises IndexError for an id that no rank has (on a CPU).
        """
        here, places = self.places(ids, len(weight))
        rows = F.embedding(places, weight)
        return summed(rows.masked_fill(~here[..., None], 0.0), self.ranks)

    def whole(self, logits: Tensor) -> Tensor:
        """The logits […, total] of all ranks, of those […, rows] of this one's rows."""
        behind = self.total - self.first - logits.shape[-1]
        return summed(F.pad(logits, (self.first, behind)), self.ranks)

    def joined(self, norm: Tensor, picked: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(log Z, the label's logit, a sum) of each row [row] over all ranks, of those over each rank's; without a gradient."""
        top = self.ranks.reduce(norm.clone(), largest=True)
        exponential, picked, sums = self.ranks.reduce(torch.stack((torch.exp(norm - top), picked, sums)))
        return top + exponential.log(), picked, sums
