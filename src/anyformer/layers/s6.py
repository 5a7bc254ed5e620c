"""S6, the mixer of Mamba: a state for each channel, whose step, writes and reads the token chooses.

Gu & Dao 2023, arXiv:2312.00752, section 3.2 and figure 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.activation import SiLU
from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec
from anyformer.layers.execution import as_given, exact_dtype
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps
from anyformer.layers.selective_scan import selective_scan
from anyformer.layers.ssd import first_steps
from anyformer.spec import MapSpec, Place, Placed, Weight, Width


class S6Spec(RecurrentSpec):
    """(x, z) of one map of the input; (δ, B, C) of the convolved x, Δ = softplus(W δ + b); y = scan(x) + D x, times silu(z)."""

    width: Width  # of x, y and z: the channels
    state_dim: Width = Width(16)
    step_rank: Width | None = None  # of δ; None: a sixteenth of d_model, rounded up
    convolution: CausalConvolutionSpec = CausalConvolutionSpec(bias=True, activation=SiLU())
    norm: MapSpec | None = None  # of δ, of B and of C
    bias: bool = False

    def rank(self, place: Place) -> int:
        return self.step_rank or -(-place.d_model // 16)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        rates = tuple(math.log(i + 1) for i in range(self.state_dim))
        return {
            "rate": Weight((self.width, self.state_dim), ("channels", "state"), "bias", fill=rates),
            "step": Weight((self.width,), ("channels",), "bias", fill=first_steps(self.width)),
            "skip": Weight((self.width,), ("channels",), "gain", fill=1.0),
        }

    def parts(self, place: Place) -> Mapping[str, Placed]:
        rank, channels = self.rank(place), place.at(self.width)
        inner = LinearSpec(d_out=Width(2 * self.width), bias=self.bias, role="inner")
        chosen = LinearSpec(d_out=Width(rank + 2 * self.state_dim))
        norms = {"step": rank, "write": self.state_dim, "read": self.state_dim}
        return {
            "inner": (inner, place.at(place.d_model)),
            "convolution": (self.convolution, channels),
            "chosen": (chosen, channels),
            **{f"norm_{name}": self.norm and (self.norm, place.at(width)) for name, width in norms.items()},
            "widened": (LinearSpec(d_out=self.width), place.at(rank)),
            "out": (LinearSpec(bias=self.bias, role="output"), channels),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"tail": (self.convolution.tail, self.width), "state": (self.state_dim, self.width)}


class S6(Recurrent[S6Spec]):
    inner: Linear
    convolution: CausalConvolution
    chosen: Linear
    norm_step: Any
    norm_write: Any
    norm_read: Any
    widened: Linear
    out: Linear
    rate: Tensor
    step: Tensor
    skip: Tensor

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the tail and the state) of x of that shape."""
        before = state or {}
        mixed, gate = self.inner(x).chunk(2, -1)
        mixed, tail = self.convolution(mixed, steps, before.get("tail"))
        n = self.spec.state_dim
        chosen = self.chosen(mixed)
        step, b, c = chosen.split((chosen.shape[-1] - 2 * n, n, n), -1)
        step, b, c = self.widened(self.norm_step(step)), self.norm_write(b), self.norm_read(c)
        with as_given(x):
            y, after = self._scan(mixed, step, b, c, steps, before.get("state"))
        return self.out(y.to(x.dtype) * F.silu(gate)), {"tail": tail, "state": after}

    def _scan(
        self, mixed: Tensor, step: Tensor, b: Tensor, c: Tensor, steps: Steps, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(y [batch, step, width], the state): in float32 at least, since a state adds up its rounding."""
        dtype = exact_dtype(mixed)
        x, step, b, c = (each.to(dtype) for each in (mixed, step, b, c))
        step = steps.kept(F.softplus(step + self.step))
        y, after = selective_scan(x, step, -self.rate.to(dtype).exp().t(), b, c, steps.begins, state)
        return y + x * self.skip, after
