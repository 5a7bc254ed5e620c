"""RG-LRU, the real-gated linear recurrent unit, in the block around it. De et al. 2024, arXiv:2402.19427, section 2.4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.activation import GELU, ActivationSpec
from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec
from anyformer.layers.execution import as_given, exact_dtype
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.linear_scan import linear_scan
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps
from anyformer.spec import Cost, Count, Place, Placed, Sizes, Weight, Width, Workload

SHARPNESS = 8.0  # c, of the decay's exponent
STEEPEST = 1000.0
# What is left after a token whose gate is open, spread evenly over the channels: section 2.4's range.
LEAST, MOST = 0.9, 0.999


def first_decays(n: int) -> tuple[float, ...]:
    """The parameters of `n` channels, whose softplus is a decay's exponent, as they start."""
    left = (LEAST + (MOST - LEAST) * (i + 0.5) / n for i in range(n))
    return tuple(math.log(math.expm1(-math.log(each) / SHARPNESS)) for each in left)


def bounded_root(x: Tensor) -> Tensor:
    """√x, whose derivative is `STEEPEST` at most, as the released code has it: at decays near 1 it would have no bound."""
    least = 0.25 / STEEPEST**2
    smooth = torch.where(x > least, x.clamp_min(least).sqrt(), STEEPEST * x)
    return smooth + (x.detach().sqrt() - smooth.detach())


class RGLRUSpec(RecurrentSpec):
    """W (h ⊙ activation(V x)), h_t = a h_{t-1} + √(1 - a²) (i ⊙ u), u the convolved map of x; a = e^(-8 r softplus(Λ)).

    The gates r and i are σ of maps of u that are one for each of `n_blocks` equal parts of the channels; where a document begins
    the root is 1.
    """

    width: Width  # of u and h: the channels
    n_blocks: Count
    convolution: CausalConvolutionSpec = CausalConvolutionSpec(bias=True)
    activation: ActivationSpec = GELU(form="tanh")
    bias: bool = True

    def __post_init__(self) -> None:
        self.require("width", self.width % self.n_blocks == 0, f"must be a multiple of n_blocks = {self.n_blocks}")

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n, each = self.n_blocks, self.width // self.n_blocks
        gate = Weight((n, each, each), ("heads", "d_in", "d_out"), std=each**-0.5)
        shift = Weight((n, each), ("heads", "d_out"), "bias", fill=0.0)
        return {
            "decay": Weight((self.width,), ("channels",), "bias", fill=first_decays(self.width)),
            "forget": gate,
            "forget_bias": shift,
            "write": gate,
            "write_bias": shift,
        }

    def parts(self, place: Place) -> Mapping[str, Placed]:
        into = LinearSpec(d_out=self.width, bias=self.bias, role="inner"), place.at(place.d_model)
        channels = place.at(self.width)
        return {
            "inner": into,
            "out_gate": into,
            "convolution": (self.convolution, channels),
            "out": (LinearSpec(bias=self.bias, role="output"), channels),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"tail": (self.convolution.tail, self.width), "state": (self.width,)}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The maps and the gates; what the scan multiplies one by one is not counted."""
        gates = Cost({"projections": 4 * self.width**2 // self.n_blocks * workload.tokens})
        return super().cost(place, workload) + gates

    def resized(self, to: Sizes) -> RGLRUSpec:
        n, _, each = to.heads(self.n_blocks, self.n_blocks, self.width // self.n_blocks)
        assert each is not None
        return to.fields(self, n_blocks=n, width=n * each)


class RGLRU(Recurrent[RGLRUSpec]):
    inner: Linear
    out_gate: Linear
    convolution: CausalConvolution
    out: Linear
    decay: Tensor
    forget: Tensor
    forget_bias: Tensor
    write: Tensor
    write_bias: Tensor

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the tail and the state) of x of that shape."""
        before = state or {}
        u, tail = self.convolution(self.inner(x), steps, before.get("tail"))
        parts = u.unflatten(-1, (self.spec.n_blocks, -1)).flatten(0, 1).transpose(0, 1)  # [block, row, width of it]
        gates = (torch.baddbmm(b[:, None], parts, w) for w, b in self._gates())
        forget, write = (gate.transpose(0, 1).reshape(u.shape) for gate in gates)
        with as_given(x):
            h, after = self._scan(u, forget, write, steps, before.get("state"))
        return self.out(h.to(x.dtype) * self.spec.activation(self.out_gate(x))), {"tail": tail, "state": after}

    def _gates(self) -> tuple[tuple[Tensor, Tensor], ...]:
        return (self.forget, self.forget_bias), (self.write, self.write_bias)

    def _scan(
        self, u: Tensor, forget: Tensor, write: Tensor, steps: Steps, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(h [batch, step, width], the last of them): in float32 at least, since a state adds up its rounding."""
        dtype = exact_dtype(u)
        u, forget, write = (each.to(dtype) for each in (u, forget, write))
        logarithm = -SHARPNESS * forget.sigmoid() * F.softplus(self.decay.to(dtype))
        root = bounded_root(-torch.expm1(2 * logarithm))
        begins, decay = steps.begins, steps.kept(logarithm).exp()
        if begins is None and state is None:
            begins = torch.arange(u.shape[1], device=u.device)[None] == 0
        if begins is not None:
            root = torch.where(begins[..., None], 1.0, root)
            decay = decay * ~begins[..., None]
        state = u.new_zeros(u.shape[0], u.shape[2]) if state is None else state.to(dtype)
        h = linear_scan(decay, steps.kept(root * write.sigmoid() * u), state)
        return h, h[:, -1]
