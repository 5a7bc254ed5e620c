"""Gated DeltaNet: linear attention that writes a key's value anew and forgets. Yang et al. 2024, arXiv:2412.06464.

Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692, section 3) forgets each feature of keys at its own rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.activation import ActivationSpec, SiLU
from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec
from anyformer.layers.delta_rule import by_head, delta_rule, delta_rule_flops
from anyformer.layers.delta_rule_by_feature import delta_rule_by_feature, delta_rule_by_feature_flops
from anyformer.layers.execution import as_given, exact_dtype
from anyformer.layers.linear import ChainSpec, Linear, LinearSpec, in_proportion
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps, head_maps
from anyformer.layers.ssd import first_steps
from anyformer.spec import Count, HeadMap, MapSpec, Place, Placed, Positive, Sizes, Weight, Width


class GatedDeltaNetSpec(RecurrentSpec):
    """Heads of (q, k, v) of maps and a convolution, q and k of length 1; the gated delta rule; norm(y) · activation(gate)."""

    n_key_heads: Count
    n_heads: Count  # of values, each key's beside each other
    key_dim: Width = Width(128)
    value_dim: Width = Width(128)
    convolution: CausalConvolutionSpec = CausalConvolutionSpec(activation=SiLU())
    norm: MapSpec = RMSNormSpec(eps=1e-6)  # of each head's values
    activation: ActivationSpec = SiLU()  # of the gate
    gate_rank: Width | None = None  # of the map to the gate; None: one matrix
    forgets: Literal["head", "feature"] = "head"  # what has a decay of its own: a state, or each feature of its keys
    forget_rank: Width | None = None  # of the map to the decays
    # Decays' logarithms are -bound · σ(e^decay · (forget + step)), none beyond the bound (Ling 3); None: of a softplus, any.
    bound: Positive | None = None
    most_rate: Positive = 1.0  # of writing: β is most_rate · σ(…); 2 lets a state turn what it holds (olmo_hybrid)
    eps: Positive = 1e-6  # beside the sum of squares of q and k

    def __post_init__(self) -> None:
        said = f"must be a multiple of n_key_heads = {self.n_key_heads}"
        self.require("n_heads", self.n_heads % self.n_key_heads == 0, said)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of all heads' queries, keys and values."""
        of_keys = self.n_key_heads * self.key_dim
        return of_keys, of_keys, self.n_heads * self.value_dim

    @property
    def n_decays(self) -> int:
        """Of all heads, or of all heads' features."""
        return self.n_heads * (self.key_dim if self.forgets == "feature" else 1)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n = self.n_heads
        decays = tuple(math.log(1 + 15 * (i + 0.5) / n) for i in range(n))  # of rates spread over 1 … 16
        return {
            "decay": Weight((n,), ("heads",), "bias", fill=decays),
            "step": Weight((self.n_decays,), ("heads",), "bias", fill=first_steps(self.n_decays)),
        }

    def parts(self, place: Place) -> Mapping[str, Placed]:
        of_values = self.widths[2]

        def into(width: int, rank: int | None = None) -> Placed:
            wide = LinearSpec(d_out=Width(width), axes=("heads", "rank" if rank else "d_model"))
            low = rank and LinearSpec(d_out=Width(rank), axes=("rank", "d_model"))
            return ChainSpec(maps=(low, wide)) if low else wide, place.at(place.d_model)

        return {
            **{name: into(width) for name, width in zip("qkv", self.widths, strict=True)},
            "out_gate": into(of_values, self.gate_rank),
            "forget": into(self.n_decays, self.forget_rank),
            "write": into(self.n_heads),
            "convolution": (self.convolution, place.at(sum(self.widths))),
            "norm": (self.norm, place.at(self.value_dim)),
            "out": (LinearSpec(role="output", axes=("d_model", "heads")), place.at(of_values)),
        }

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        return head_maps((self.n_key_heads, self.key_dim), (self.n_heads, self.value_dim))

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {
            "tail": (self.convolution.tail, sum(self.widths)),
            "state": (self.n_heads, self.key_dim, self.value_dim),
        }

    def chunk_flops(self, query: int, past: int) -> int:
        sizes = {"heads": self.n_heads, "key_dim": self.key_dim, "value_dim": self.value_dim}
        if self.forgets == "feature":
            return delta_rule_by_feature_flops(query, past, **sizes)
        return delta_rule_flops(query, past, key_heads=self.n_key_heads, **sizes)

    def resized(self, to: Sizes) -> GatedDeltaNetSpec:
        heads, of_keys, value_dim = to.heads(self.n_heads, self.n_key_heads, self.value_dim)
        assert value_dim is not None

        def like(rank: Width | None) -> int | None:
            return rank and max(4, round(rank * value_dim / self.value_dim))

        return to.fields(
            self,
            n_heads=heads,
            n_key_heads=of_keys,
            value_dim=value_dim,
            key_dim=in_proportion(self.key_dim, self.value_dim, value_dim, 8),
            gate_rank=like(self.gate_rank),
            forget_rank=like(self.forget_rank),
        )


class GatedDeltaNet(Recurrent[GatedDeltaNetSpec]):
    q: Linear
    k: Linear
    v: Linear
    out_gate: Any
    forget: Any
    write: Linear
    convolution: CausalConvolution
    norm: Any
    out: Linear
    decay: Tensor
    step: Tensor

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the tail and the state) of x of that shape."""
        before = state or {}
        mixed, tail = self.convolution(torch.cat((self.q(x), self.k(x), self.v(x)), -1), steps, before.get("tail"))
        forget, write = self.forget(x), self.write(x)
        with as_given(x):
            y, after = self._scan(mixed, forget, write, steps, before.get("state"), state is not None)
        gate = self.out_gate(x).unflatten(-1, (self.spec.n_heads, -1))
        y = self.norm(y.to(x.dtype)) * self.spec.activation(gate)
        return self.out(y.flatten(2)), {"tail": tail, "state": after}

    def _scan(
        self, mixed: Tensor, forget: Tensor, write: Tensor, steps: Steps, state: Tensor | None, keeps: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(y [batch, step, heads, value_dim], the state): in float32 at least, since a state adds up its rounding."""
        spec, dtype = self.spec, exact_dtype(mixed)
        of_keys, heads = spec.n_key_heads, spec.n_heads
        shared = zip(mixed.to(dtype).split(spec.widths, -1), (of_keys, of_keys, heads), strict=True)
        q, k, v = (each.unflatten(-1, (n, -1)) for each, n in shared)
        q, k = (each * (each.square().sum(-1, keepdim=True) + spec.eps).rsqrt() for each in (q, k))
        step = (forget.to(dtype) + self.step).unflatten(-1, (heads, -1))
        rate = steps.kept(spec.most_rate * write.to(dtype).sigmoid())
        q, speed = q * spec.key_dim**-0.5, self.decay.to(dtype).exp()[:, None]
        decay = steps.kept(-speed * F.softplus(step) if spec.bound is None else -spec.bound * (speed * step).sigmoid())
        if spec.forgets == "head":
            return delta_rule(q, k, v, decay[..., 0], rate, steps.begins, state, keeps)
        q, k = (by_head(x, heads // of_keys) for x in (q, k))
        return delta_rule_by_feature(q, k, v, decay, rate, steps.begins, state, keeps)
