"""Mamba-2: a state-space model whose heads forget by one number a token. Dao & Gu 2024, arXiv:2405.21060, section 7."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.activation import SiLU
from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec
from anyformer.layers.execution import as_given, exact_dtype
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.linear_attention import linear_attention, linear_attention_flops
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps
from anyformer.spec import (
    Count,
    HeadMap,
    MapSpec,
    NotNegative,
    Place,
    Placed,
    Positive,
    Sizes,
    Weight,
    Width,
)

# Steps Δ that heads start with, spread evenly over their logarithms: the reference implementation's range.
SHORTEST, LONGEST = 1e-3, 1e-1


def first_steps(n: int) -> tuple[float, ...]:
    """The biases of `n` heads whose softplus are their first steps."""
    spread = (i / max(1, n - 1) for i in range(n))
    steps = (SHORTEST * (LONGEST / SHORTEST) ** share for share in spread)
    return tuple(step + math.log(-math.expm1(-step)) for step in steps)


class SSDSpec(RecurrentSpec):
    """(z, x, B, C, Δ) of one map of the input; S ← e^(−e^a Δ) S + Δ x Bᵀ, y = S C + D x; the norm of y gated by silu(z)."""

    n_heads: Count
    head_dim: Width = Width(64)
    state_dim: Width = Width(128)
    n_groups: Count = Count(1)  # each with a B and a C for its heads
    convolution: CausalConvolutionSpec = CausalConvolutionSpec(bias=True, activation=SiLU())
    norm: MapSpec | None = RMSNormSpec(eps=1e-5)
    norm_groups: bool = True  # each group's features are normed by themselves
    norm_first: bool = False  # norm(y) · silu(z), not norm(y · silu(z))
    bias: bool = False
    multipliers: tuple[Positive, ...] = ()  # of z, x, B, C and Δ as the first map makes them; none: 1 (Falcon-H1's μP)
    least_step: NotNegative = 0.0
    most_step: NotNegative | None = None  # None: no bound

    def __post_init__(self) -> None:
        self.require("n_heads", self.n_heads % self.n_groups == 0, f"must be a multiple of n_groups = {self.n_groups}")
        self.require("multipliers", len(self.multipliers) in (0, 5), "must be five, of z, x, B, C and Δ, or none")

    @property
    def width(self) -> int:
        """Of x, y and z: all heads' features."""
        return self.n_heads * self.head_dim

    @property
    def mixed(self) -> int:
        """The width of what the convolution mixes: x, B and C."""
        return sum(self.made[1:4])

    @property
    def made(self) -> tuple[int, ...]:
        """The widths of what the first map makes: z, x, B, C and Δ."""
        of_groups = self.n_groups * self.state_dim
        return self.width, self.width, of_groups, of_groups, self.n_heads

    @property
    def norm_shape(self) -> tuple[int, ...]:
        """Of what the norm reads: groups of features where each is normed by itself."""
        groups = self.n_groups if self.norm_groups else 1
        return (groups, self.width // groups) if groups > 1 else (self.width,)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        h = self.n_heads
        rates = tuple(math.log(i + 1) for i in range(h))
        return {
            "rate": Weight((h,), ("heads",), "bias", fill=rates),
            "step": Weight((h,), ("heads",), "bias", fill=first_steps(h)),
            "skip": Weight((h,), ("heads",), "gain", fill=1.0),
        }

    def parts(self, place: Place) -> Mapping[str, Placed]:
        inner = LinearSpec(d_out=Width(sum(self.made)), bias=self.bias, role="inner")
        return {
            "inner": (inner, place.at(place.d_model)),
            "convolution": (self.convolution, place.at(self.mixed)),
            "norm": self.norm and (self.norm, place.at(*self.norm_shape)),
            "out": (LinearSpec(bias=self.bias, role="output"), place.at(self.width)),
        }

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        """C is to B and x what queries are to keys and values (Dao & Gu, section 4)."""
        z, x, b, _, _ = self.made
        keys, values = (self.n_groups, self.state_dim), (self.n_heads, self.head_dim)
        of_keys = HeadMap("query", "inner", *keys, z + x + b), HeadMap("key", "inner", *keys, z + x)
        return *of_keys, HeadMap("value", "inner", *values, z), HeadMap("output", "out", *values)

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {
            "tail": (self.convolution.tail, self.mixed),
            "state": (self.n_heads, self.state_dim, self.head_dim),
        }

    def chunk_flops(self, query: int, past: int) -> int:
        sizes = {"groups": self.n_groups, "heads": self.n_heads, "key_dim": self.state_dim, "value_dim": self.head_dim}
        return linear_attention_flops(query, past, **sizes)

    def resized(self, to: Sizes) -> SSDSpec:
        n_heads, n_groups, head_dim = to.heads(self.n_heads, self.n_groups, self.head_dim)
        return to.fields(self, n_heads=n_heads, n_groups=n_groups, head_dim=head_dim)


class SSD(Recurrent[SSDSpec]):
    inner: Linear
    convolution: CausalConvolution
    norm: Any
    out: Linear
    rate: Tensor
    step: Tensor
    skip: Tensor

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the tail and the state) of x of that shape."""
        spec, before = self.spec, state or {}
        inner = self.inner(x)
        if spec.multipliers:
            each = zip(spec.made, spec.multipliers, strict=True)
            inner = inner * torch.cat([inner.new_full((n,), m) for n, m in each])
        gate, mixed, step = inner.split((spec.width, spec.mixed, spec.n_heads), -1)
        mixed, tail = self.convolution(mixed, steps, before.get("tail"))
        with as_given(x):
            y, after = self._scan(mixed, step, steps, before.get("state"), state is not None)
        y = self._gated(y.to(x.dtype), gate)
        return self.out(y), {"tail": tail, "state": after}

    def _scan(
        self, mixed: Tensor, step: Tensor, steps: Steps, state: Tensor | None, keeps: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(y [batch, step, width], the state): in float32 at least, since a state adds up its rounding."""
        spec, dtype = self.spec, exact_dtype(mixed)
        parts = zip(
            mixed.to(dtype).split(spec.made[1:4], -1), (spec.n_heads, spec.n_groups, spec.n_groups), strict=True
        )
        x, b, c = (each.unflatten(-1, (n, -1)) for each, n in parts)
        step = steps.kept(F.softplus(step.to(dtype) + self.step).clamp(spec.least_step, spec.most_step))
        decay = -self.rate.to(dtype).exp() * step
        y, after = linear_attention(c, b, x * step[..., None], decay, steps.begins, state, keeps)
        return (y + x * self.skip[:, None]).flatten(2), after

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        gate = F.silu(gate)
        y = y if self.spec.norm_first else y * gate
        y = self.norm(y.unflatten(-1, self.spec.norm_shape)).flatten(2)
        return y * gate if self.spec.norm_first else y
