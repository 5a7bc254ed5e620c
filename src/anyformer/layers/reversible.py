"""Reversible residuals: a layer's input is made again from its output, so that training keeps no more for more layers.

Gomez et al. 2017, arXiv:1707.04585; of Transformers Kitaev et al. 2020, arXiv:2001.04451, section 3. The streams are a sequence
x₀ = x₁, xⱼ₊₁ = xⱼ₋₁ + f(xⱼ), whose last two give all others: xⱼ₋₁ = xⱼ₊₁ - f(xⱼ).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyformer.layers.context import Decisions, ForwardContext, Notes
from anyformer.layers.execution import autocast_dtype
from anyformer.layers.memory_efficient import made_again, saves_activations
from anyformer.layers.part import Part
from anyformer.layers.residual import Branches
from anyformer.spec import ResidualSpec


class ReversibleSpec(ResidualSpec):
    """Two streams that take turns: what branches read of the one is added to the other, and training keeps neither, but what
    branches choose by content (buckets, experts), which rounding of the way back would change.

    `output`: what the final norm sees, the mean of both or both side by side (Reformer).
    """

    undoes, sums_normed = True, False

    output: Literal["mean", "both"] = "mean"

    def width(self, d_model: int) -> int:
        return 2 * d_model if self.output == "both" else d_model


class Rewinding:
    """The two streams [batch, token, d_model] at the place that a backward pass has come to."""

    streams: tuple[Tensor, Tensor]


class ReversibleState(NamedTuple):
    """The state: what was read last, what is read next, each [batch, token, d_model], and how to go back; None: nobody will."""

    last: Tensor
    next: Tensor
    rewinding: Rewinding | None


class Reversible(Part[ReversibleSpec]):
    def open(self, x: Tensor, context: ForwardContext) -> ReversibleState:
        """Both streams begin with x [batch, token, d_model], in float32 under autocast: a sum in half precision is not undone."""
        x = x if autocast_dtype(x) is None else x.float()
        return ReversibleState(x, x, Rewinding() if context.trains and saves_activations() else None)

    def step(
        self, state: ReversibleState, branches: Branches, context: ForwardContext
    ) -> tuple[ReversibleState, list[Notes]]:
        """The state after branches have read the one stream and are added to the other, and their notes."""
        last, x, rewinding = state
        if rewinding is None:
            y, notes = branches(x, context)
            return ReversibleState(x, last + y, None), notes
        given, needs_gradient = [x], x.requires_grad
        made: list[Tensor] = []  # what branches choose by content

        def link(here: ForwardContext) -> tuple[Tensor, list[Notes]]:
            x = given.pop() if given else rewinding.streams[0].detach().requires_grad_(needs_gradient)
            y, notes = branches(x, replace(here, decisions=Decisions(made, here.again)))
            return _Rewind.apply(y, rewinding), notes  # pyright: ignore[reportReturnType]

        y, notes = made_again(link, context=context)
        return ReversibleState(x, last + y, rewinding), notes

    def close(self, state: ReversibleState) -> tuple[Tensor, ReversibleState]:
        """(what the final norm sees [batch, token, `width`], the state to go on from): from here a backward pass can begin."""
        last, x, rewinding = state
        if rewinding is not None:
            last, x = _Keep.apply(last, x, rewinding)  # pyright: ignore[reportGeneralTypeIssues]
        seen = torch.cat((last, x), -1) if self.spec.output == "both" else (last + x) / 2
        return seen, ReversibleState(last, x, rewinding)


class _Keep(torch.autograd.Function):
    """The two streams, each [batch, token, d_model], kept for the backward pass to go back from."""

    @staticmethod
    def forward(ctx: Any, last: Tensor, x: Tensor, rewinding: Rewinding) -> tuple[Tensor, Tensor]:
        """The streams [batch, token, d_model] as they are."""
        ctx.rewinding = rewinding
        ctx.save_for_backward(last, x)
        return last.view_as(last), x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, for_last: Tensor, for_x: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        ctx.rewinding.streams = ctx.saved_tensors
        return for_last, for_x, None


class _Rewind(torch.autograd.Function):
    """What branches write [batch, token, d_model]; the first of them that a backward pass meets.

    To look at what it saved makes the branches run again, since it is saved where they are checkpointed.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, rewinding: Rewinding) -> Tensor:
        """What branches write [batch, token, d_model] as it is."""
        ctx.rewinding = rewinding
        ctx.save_for_backward(y)
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        last, x = ctx.rewinding.streams
        ctx.rewinding.streams = (x - y, last)
        return grad, None
