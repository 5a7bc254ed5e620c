"""How branches write to the stream: addition, scaled (DeepNorm, arXiv:2203.00555), reversible (arXiv:2001.04451)."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.layers.part import Part
from anyformer.spec import Exponent, ResidualSpec


class AddSpec(ResidualSpec):
    """scale · x + branch · y."""

    scale: float = 1.0
    branch: float = 1.0  # of what each branch writes (Granite)


class AddByDepthSpec(ResidualSpec):
    """α x + y, where α is the number of the stack's branches to this power; DeepNorm's is 1/4, and follows the depth."""

    power: Exponent = 0.25

    def within(self, n_branches: int) -> AddSpec:
        return AddSpec(scale=n_branches**self.power)


class Add(Part[AddSpec]):
    def open(self, x: Tensor) -> Tensor:
        """The state [batch, token, d_model] of the stream that starts from x."""
        return x

    def read(self, state: Tensor) -> Tensor:
        """What branches see [batch, token, d_model]."""
        return state

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """The state after a branch has given y [batch, token, d_model]."""
        y = y if self.spec.branch == 1.0 else self.spec.branch * y
        if self.spec.scale == 0.0:  # layers one on another, as LSTMs are: no way around them
            return y
        return state + y if self.spec.scale == 1.0 else self.spec.scale * state + y

    def close(self, state: Tensor) -> Tensor:
        """What the final norm sees [batch, token, d_model]."""
        return state


class ReversibleSpec(ResidualSpec):
    """Two streams that take turns, so that inputs could be recomputed from outputs: Kitaev et al. 2020 (Reformer)."""

    def width(self, d_model: int) -> int:
        return 2 * d_model


class Reversible(Part[ReversibleSpec]):
    def open(self, x: Tensor) -> Tensor:
        """[x, x], [batch, token, 2 · d_model]."""
        return torch.cat((x, x), -1)

    def read(self, state: Tensor) -> Tensor:
        """The second stream [batch, token, d_model]."""
        return state.chunk(2, -1)[1]

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """(b, a + y) for the state (a, b), [batch, token, 2 · d_model]."""
        a, b = state.chunk(2, -1)
        return torch.cat((b, a + y), -1)

    def close(self, state: Tensor) -> Tensor:
        """Both streams side by side [batch, token, 2 · d_model]."""
        return state
