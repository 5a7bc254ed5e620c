"""How branches write to the stream: addition, scaled (DeepNorm, arXiv:2203.00555), reversible (arXiv:2001.04451)."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.layers.part import Part
from anyformer.spec import ResidualSpec


class AddSpec(ResidualSpec):
    """scale · x + y; DeepNorm's α is the scale."""

    scale: float = 1.0


class Add(Part[AddSpec]):
    def open(self, x: Tensor) -> Tensor:
        """Return the state of the stream that starts from x."""
        return x

    def read(self, state: Tensor) -> Tensor:
        """Return what branches see."""
        return state

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """Return the state after a branch has given y."""
        return state + y if self.spec.scale == 1.0 else self.spec.scale * state + y

    def close(self, state: Tensor) -> Tensor:
        """Return what the final norm sees."""
        return state


class ReversibleSpec(ResidualSpec):
    """Two streams that take turns, so that inputs could be recomputed from outputs: Kitaev et al. 2020 (Reformer)."""

    def width(self, d_model: int) -> int:
        return 2 * d_model


class Reversible(Part[ReversibleSpec]):
    def open(self, x: Tensor) -> Tensor:
        """Return [x, x]."""
        return torch.cat((x, x), -1)

    def read(self, state: Tensor) -> Tensor:
        """Return the second stream."""
        return state.chunk(2, -1)[1]

    def write(self, state: Tensor, y: Tensor) -> Tensor:
        """Return (b, a + y) for the state (a, b)."""
        a, b = state.chunk(2, -1)
        return torch.cat((b, a + y), -1)

    def close(self, state: Tensor) -> Tensor:
        """Return both streams side by side."""
        return state
