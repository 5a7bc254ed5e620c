"""The layers of a stack that one of several processes computes, and what passes from one to the next: pipeline parallelism.

Huang et al. 2019 (GPipe), arXiv:1811.06965. All know the tokens of a pass; what crosses a cut is what layers before it made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from anyformer.layers.context import ForwardContext, Store


class StageInput(NamedTuple):
    """What layers behind a cut read beside the stream: the embedding's output, or what an earlier layer lends."""

    what: Literal["input", "keys", "choice", "router"]
    name: str = ""  # that later layers know it by
    parts: tuple[str, ...] = ("",)  # of keys and values, the names of what is stored


@dataclass(frozen=True)
class PipelineStage:
    """Some layers of a stack, one after the other: the first stage embeds, the last ends the stream and has the heads."""

    number: int
    n_stages: int
    layers: range
    takes: tuple[StageInput, ...] = ()  # beside the residual's state, from the stage before
    gives: tuple[StageInput, ...] = ()
    own: frozenset[str] = frozenset()  # the names of the weights that it has
    # those that several stages have, by name: the numbers of those that do
    common: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # of all weights of the model, in its order

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def last(self) -> bool:
        return self.number == self.n_stages - 1

    def enter(self, carried: Sequence[Tensor], context: ForwardContext, store: Store) -> Tensor:
        """The residual's state [batch, token, …] that the stage before gave; the rest is put where layers look for it.

        `store`: that of any mixer call, whose keys are the tokens that those lent are of.
        """
        state, *others = carried
        left = iter(others)
        for what, name, parts in self.takes:
            each = {part: next(left) for part in parts}
            if what == "input":
                context.input = each[""]
            else:
                context.memo.found[f"{what} {name}"] = (each, store.keys) if what == "keys" else each[""]
        return state

    def leave(self, state: Any, context: ForwardContext) -> tuple[Tensor, ...]:
        """What the next stage is given, each [batch, …]."""
        found = [state]
        for what, name, parts in self.gives:
            if what == "input":
                found.append(context.given("input"))
            else:
                held = context.memo.found[f"{what} {name}"]
                found += [held[0][part] for part in parts] if what == "keys" else [held]
        return tuple(found)


def with_loss(x: Tensor, loss: Tensor) -> Tensor:
    """X, whose backward pass is also that of a loss [] of this process's own."""
    return _WithLoss.apply(x, loss)  # type: ignore[return-value]


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        """X [batch, …] as it is."""
        ctx.like = loss.new_ones(())
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return grad, ctx.like
