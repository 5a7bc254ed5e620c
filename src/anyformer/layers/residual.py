"""How branches write to the stream: addition, or addition of scaled summands (DeepNorm, arXiv:2203.00555)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

from anyformer.layers.part import Part
from anyformer.layers.tokens import ForwardContext, Notes
from anyformer.spec import Count, Exponent, ResidualSpec, ScaleSpec

# What the branches of a sublayer make [batch, token, d_model] of what they read, of that shape, and a note of each.
Branches = Callable[[Tensor, ForwardContext], tuple[Tensor, list[Notes]]]


class AddSpec(ResidualSpec):
    """scale · x + branch · y."""

    scale: float = 1.0
    branch: float = 1.0  # of what each branch writes (Granite)


class AddByDepthSpec(ResidualSpec):
    """α x + β y, by the number of the stack's branches: α is it to this power (DeepNorm's is 1/4), β what `branch` makes of it.

    β of MiniCPM is s / √layers (Hu et al. 2024, arXiv:2404.06395, section 3.1): s √2 / √branches.
    """

    power: Exponent = 0.25
    branch: ScaleSpec = ScaleSpec()

    def within(self, n_branches: int) -> AddSpec:
        return AddSpec(scale=n_branches**self.power, branch=self.branch.value(n_branches))


class SideBySideSpec(ResidualSpec, abstract=True):
    """Streams of d_model features side by side, n of them."""

    sums_normed = False
    n: Count = Count(4)

    def __post_init__(self) -> None:
        self.require("n", self.n > 1, "is one stream, which Add is; give 2 or more")

    @property
    def n_streams(self) -> int:
        return self.n


R = TypeVar("R", bound=SideBySideSpec)


class EqualStreams(Part[R], Generic[R]):
    """The module of streams that all begin as the embedding; a subclass writes `close`."""

    def open(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The streams side by side [batch, token, n · d_model], each of them x [batch, token, d_model]."""
        return x.repeat(1, 1, self.spec.n)

    def step(self, state: Tensor, branches: Branches, context: ForwardContext) -> tuple[Tensor, list[Notes]]:
        """The streams after branches have read their mean [batch, token, d_model] and are added to all, and their notes."""
        y, notes = branches(state.unflatten(-1, (self.spec.n, -1)).mean(-2), context)
        return state + y.repeat(1, 1, self.spec.n), notes


class Add(Part[AddSpec]):
    def open(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The state [batch, token, d_model] of the stream that starts from x."""
        return x

    def step(self, state: Tensor, branches: Branches, context: ForwardContext) -> tuple[Tensor, list[Notes]]:
        """The state [batch, token, d_model] after branches have read it and written to it, and their notes."""
        y, notes = branches(state, context)
        y = y if self.spec.branch == 1.0 else self.spec.branch * y
        if self.spec.scale == 0.0:  # layers one on another, as LSTMs are: no way around them
            return y, notes
        return (state + y if self.spec.scale == 1.0 else self.spec.scale * state + y), notes

    def close(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(what the final norm sees [batch, token, d_model], the state to go on from)."""
        return state, state
