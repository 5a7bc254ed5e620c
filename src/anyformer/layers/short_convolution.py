"""Short convolutions: gated, in place of attention (LFM2: Liquid AI 2025, arXiv:2511.23404, section 2); and of what a branch
writes (Inkling: Thinking Machines 2026, transformers' class)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps
from anyformer.spec import Place, Placed, Width


class ShortConvolutionSpec(RecurrentSpec):
    """W_out (c ⊙ convolution(b ⊙ x)), of (b, c, x) = W_in of the input; its state is the convolution's last inputs."""

    flops_as: ClassVar[str | None] = "recurrence"

    convolution: CausalConvolutionSpec = CausalConvolutionSpec(size=3)
    bias: bool = False

    def parts(self, place: Place) -> Mapping[str, Placed]:
        d_model = place.d_model
        inner = LinearSpec(d_out=Width(3 * d_model), bias=self.bias, role="inner")
        return {
            "inner": (inner, place.at(d_model)),
            "convolution": (self.convolution, place.at(d_model)),
            "out": (LinearSpec(bias=self.bias, role="output"), place.at(d_model)),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"tail": (self.convolution.tail, place.d_model)}


class ShortConvolution(Recurrent[ShortConvolutionSpec]):
    inner: Linear
    convolution: CausalConvolution
    out: Linear

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the tail) of x of that shape."""
        gate_in, gate_out, x = self.inner(x).chunk(3, -1)
        y, tail = self.convolution(gate_in * x, steps, (state or {}).get("tail"))
        return self.out(gate_out * y), {"tail": tail}


class ResidualConvolutionSpec(RecurrentSpec):
    """x + convolution(x): each channel and a sum over its own last tokens."""

    convolution: CausalConvolutionSpec = CausalConvolutionSpec()

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"tail": (self.convolution.tail, place.d_model)}


class ResidualConvolution(Recurrent[ResidualConvolutionSpec]):
    convolution: CausalConvolution

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the tail) of x of that shape."""
        y, tail = self.convolution(x, steps, (state or {}).get("tail"))
        return x + y, {"tail": tail}
