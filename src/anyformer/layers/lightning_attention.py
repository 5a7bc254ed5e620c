"""Lightning attention: linear attention whose heads forget at fixed rates. Qin et al. 2024, arXiv:2401.04658; MiniMax-01 2025,
arXiv:2501.08313, section 2.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anyformer.layers.activation import ActivationSpec, Sigmoid, SiLU
from anyformer.layers.execution import as_given, constant, exact_dtype
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.linear_attention import linear_attention, linear_attention_flops
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps, head_maps
from anyformer.spec import Count, HeadMap, MapSpec, Place, Placed, Positive, Sizes, Width

LEAST = 1e-5  # of the share of a rate that is left at the last layer, and beside the depth that it is of


class LightningAttentionSpec(RecurrentSpec):
    """(q, k, v) = activation(W x); S ← e^(-rate 2^(-8 h / n)) S + k vᵀ, y = Sᵀ q in head h = 1 … n; norm(y) · gate(V x)."""

    n_heads: Count
    head_dim: Width = Width(128)
    activation: ActivationSpec = SiLU()  # of queries, keys and values
    gate: ActivationSpec = Sigmoid()
    norm: MapSpec = RMSNormSpec(eps=1e-6)  # of all heads as one vector
    rate: Positive | None = None  # None: from 1 in the first layer of a stack down to nearly 0 in its last

    @property
    def width(self) -> int:
        """Of all heads' queries, of their keys, and of their values."""
        return self.n_heads * self.head_dim

    def within(self, layer: int, n_layers: int) -> LightningAttentionSpec:
        if self.rate is not None:
            return self
        return self.but(rate=1 - layer / (n_layers - 1 + LEAST) + LEAST)

    def slopes(self) -> tuple[float, ...]:
        """Of each head; times the rate it is the logarithm of what the head forgets from one token to the next."""
        return tuple(2 ** (-8 * h / self.n_heads) for h in range(1, self.n_heads + 1))

    def parts(self, place: Place) -> Mapping[str, Placed]:
        into = LinearSpec(d_out=Width(self.width), axes=("heads", "d_model")), place.at(place.d_model)
        return {
            **dict.fromkeys(("q", "k", "v", "out_gate"), into),
            "norm": (self.norm, place.at(self.width)),
            "out": (LinearSpec(role="output", axes=("d_model", "heads")), place.at(self.width)),
        }

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        each = self.n_heads, self.head_dim
        return head_maps(each, each)

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"state": (self.n_heads, self.head_dim, self.head_dim)}

    def chunk_flops(self, query: int, past: int) -> int:
        n, dim = self.n_heads, self.head_dim
        return linear_attention_flops(query, past, groups=n, heads=n, key_dim=dim, value_dim=dim)

    def resized(self, to: Sizes) -> LightningAttentionSpec:
        n_heads, _, head_dim = to.heads(self.n_heads, self.n_heads, self.head_dim)
        return to.fields(self, n_heads=n_heads, head_dim=head_dim)


class LightningAttention(Recurrent[LightningAttentionSpec]):
    q: Linear
    k: Linear
    v: Linear
    out_gate: Linear
    norm: Any
    out: Linear

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the state) of x of that shape."""
        spec, before = self.spec, (state or {}).get("state")
        q, k, v = (spec.activation(each(x)).unflatten(-1, (spec.n_heads, -1)) for each in (self.q, self.k, self.v))
        with as_given(x):  # in float32 at least, since a state adds up its rounding
            dtype = exact_dtype(x)
            # A layer's own number enters by a product of tensors, so that layers share a compiler's graph.
            decay = (constant(spec.slopes(), x, dtype) * -(spec.rate or 1.0)).expand(1, x.shape[1], -1)
            q, k, v = (each.to(dtype) for each in (q, k, steps.kept(v)))
            y, after = linear_attention(q, k, v, steps.kept(decay), steps.begins, before, state is not None)
        y = self.norm(y.to(x.dtype).flatten(2)) * spec.gate(self.out_gate(x))
        return self.out(y), {"state": after}
