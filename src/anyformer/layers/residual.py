"""How branches write to the stream: addition, or addition of scaled summands (DeepNorm, arXiv:2203.00555)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from anyformer.layers.context import ForwardContext, Notes
from anyformer.layers.part import Part
from anyformer.spec import Exponent, ResidualSpec, ScaleSpec

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
