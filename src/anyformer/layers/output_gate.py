"""A gate of attention's values by what its queries are made of: Qiu et al. 2025, arXiv:2505.06708, section 2.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor, nn

from anyformer.layers.activation import ActivationSpec, Sigmoid
from anyformer.layers.linear import product
from anyformer.layers.part import Part
from anyformer.spec import Cost, PartSpec, Place, Weight, Workload


class OutputGateSpec(PartSpec):
    """y · activation(W x + b): y are the values attention takes the means of, x is what the layer reads, or what its queries
    are made of.

    A number for each feature of each head, or one a head. Its place's shape is (n_heads, width of a value, width of what
    queries are made of).
    """

    observed_as: ClassVar[str | None] = "projections"

    over: Literal["features", "heads"] = "features"
    activation: ActivationSpec = Sigmoid()
    bias: bool = False
    reads: Literal["layer", "query"] = "layer"

    def width(self, place: Place) -> int:
        """How many numbers there are for a token."""
        n_heads, value_width, _ = place.shape
        return n_heads * value_width if self.over == "features" else n_heads

    def read_width(self, place: Place) -> int:
        """The width of x."""
        return place.d_model if self.reads == "layer" else place.shape[-1]

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        width = self.width(place)
        return {
            "weight": Weight((width, self.read_width(place)), ("heads", "d_model")),
            "bias": Weight((width,), ("heads",), "bias", fill=0.0) if self.bias else None,
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        return Cost({"projections": 2 * self.width(place) * self.read_width(place) * workload.tokens})


class OutputGate(Part[OutputGateSpec]):
    weight: Tensor
    bias: Tensor | None
    activation: nn.Module

    def forward(self, y: Tensor, x: Tensor, narrow: Tensor) -> Tensor:
        """The y [batch, heads, query, width of a value], gated by x [batch, query, d_model], or by what queries are made of."""
        x = x if self.spec.reads == "layer" else narrow
        each = self.activation(product(x, self.weight, self.bias)).unflatten(-1, (y.shape[1], -1))
        # As the maps read and write them: compiled, softplus has no gradient for numbers that lie otherwise (PyTorch 2.13).
        return (y.transpose(1, 2) * each).transpose(1, 2)
