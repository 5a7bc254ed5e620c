"""mLSTM: an LSTM whose cell is a matrix and whose gates are exponentials. Beck et al. 2024, arXiv:2405.04517, section 2.3; as
xLSTM-7B has it: Beck et al. 2025, arXiv:2503.13427, section 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.activation import ActivationSpec, Sigmoid, soft_capped
from anyformer.layers.execution import as_given, exact_dtype
from anyformer.layers.linear import Linear, LinearSpec, in_proportion
from anyformer.layers.linear_attention import linear_attention, linear_attention_flops
from anyformer.layers.norm import LayerNormSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps, head_maps
from anyformer.spec import Count, HeadMap, MapSpec, Place, Placed, Positive, Sizes, Weight, Width

# The biases of gates that heads start with, whose matrices start from 0: the reference implementation's.
CLOSED, FIRST, LAST = -10.0, 3.0, 6.0


class MLSTMSpec(RecurrentSpec):
    """C ← σ(f) C + eⁱ k vᵀ, n ← σ(f) n + eⁱ k, h = Cᵀq / (max(|nᵀq|, 1) + ε eᵐ) of q over √key_dim; norm(h) · gate(V x).

    m ← max(log σ(f) + m, i), from 0, and what is held is e⁻ᵐ C and e⁻ᵐ n, so that no gate overflows.
    """

    n_heads: Count
    key_dim: Width
    value_dim: Width
    cap: Positive | None = 15.0  # i and f are cap · tanh(… / cap)
    norm: MapSpec = LayerNormSpec(eps=1e-6, bias=False)  # of each head's values
    gate: ActivationSpec = Sigmoid()
    eps: Positive = 1e-6

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of all heads' queries, keys and values."""
        return self.n_heads * self.key_dim, self.n_heads * self.key_dim, self.n_heads * self.value_dim

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n = self.n_heads
        spread = tuple(FIRST + (LAST - FIRST) * i / max(1, n - 1) for i in range(n))
        return {
            "write_bias": Weight((n,), ("gates",), "bias", fill=CLOSED),
            "forget_bias": Weight((n,), ("gates",), "bias", fill=spread),
        }

    def parts(self, place: Place) -> Mapping[str, Placed]:
        def into(width: int, start: float | None = None) -> Placed:
            spec = LinearSpec(d_out=Width(width), axes=("heads", "d_model"), start=start)
            return spec, place.at(place.d_model)

        of_values = self.widths[2]
        return {
            **{name: into(width) for name, width in zip("qkv", self.widths, strict=True)},
            "write": into(self.n_heads, 0.0),
            "forget": into(self.n_heads, 0.0),
            "out_gate": into(of_values),
            "norm": (self.norm, place.at(self.n_heads, self.value_dim)),
            "out": (LinearSpec(role="output", axes=("d_model", "heads")), place.at(of_values)),
        }

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        return head_maps((self.n_heads, self.key_dim), (self.n_heads, self.value_dim))

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        # The last column of a state is n.
        return {"state": (self.n_heads, self.key_dim, self.value_dim + 1), "largest": (self.n_heads,)}

    def chunk_flops(self, query: int, past: int) -> int:
        n = self.n_heads
        return linear_attention_flops(
            query, past, groups=n, heads=n, key_dim=self.key_dim, value_dim=self.value_dim + 1
        )

    def resized(self, to: Sizes) -> MLSTMSpec:
        n_heads, _, value_dim = to.heads(self.n_heads, self.n_heads, self.value_dim)
        assert value_dim is not None
        key_dim = in_proportion(self.key_dim, self.value_dim, value_dim)
        return to.fields(self, n_heads=n_heads, value_dim=value_dim, key_dim=key_dim)


class MLSTM(Recurrent[MLSTMSpec]):
    q: Linear
    k: Linear
    v: Linear
    write: Linear
    forget: Linear
    out_gate: Linear
    norm: Any
    out: Linear
    write_bias: Tensor
    forget_bias: Tensor

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the state and m) of x of that shape."""
        spec = self.spec
        q, k, v = (each(x).unflatten(-1, (spec.n_heads, -1)) for each in (self.q, self.k, self.v))
        write = soft_capped(self.write(x) + self.write_bias, spec.cap)
        forget = soft_capped(self.forget(x) + self.forget_bias, spec.cap)
        with as_given(x):  # in float32 at least, since a state adds up its rounding
            dtype = exact_dtype(x)
            q, k, v, write, forget = (each.to(dtype) for each in (q, k, v, write, forget))
            y, after = self._scan(q, k, v, write, F.logsigmoid(forget), steps, state)
        y = self.norm(y.to(x.dtype)).flatten(2) * spec.gate(self.out_gate(x))
        return self.out(y), after

    def _scan(
        self, q: Tensor, k: Tensor, v: Tensor, write: Tensor, forget: Tensor, steps: Steps,
        state: Mapping[str, Tensor] | None,
    ) -> tuple[Tensor, Mapping[str, Any]]:  # fmt: skip
        """(h [batch, step, heads, value_dim], the state and m): linear attention whose decays and keys hold m."""
        held = state or {}
        if steps.real is not None:
            write = write.masked_fill(~steps.real[..., None], -torch.inf)
        forget, before = steps.kept(forget), held.get("largest")
        before = torch.zeros_like(write[:, 0]) if before is None else before.to(write.dtype)
        m = largest(write, forget, steps.begins, before)
        # h is the same whatever the numbers held are divided by, but for what ε is multiplied by: m has no gradient elsewhere.
        most = m.detach()
        decay = forget + torch.cat((before[:, None], most[:, :-1]), 1) - most
        q, k = q * self.spec.key_dim**-0.5, k * (write - most).exp()[..., None]
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        y, after = linear_attention(q, k, v, decay, steps.begins, held.get("state"), state is not None)
        y, total = y.split((self.spec.value_dim, 1), -1)
        least, eps = (-most).exp()[..., None], self.spec.eps * (m - most).exp()[..., None]
        return y / (total.abs().maximum(least) + eps), {"state": after, "largest": most[:, -1]}


def largest(write: Tensor, forget: Tensor, begins: Tensor | None, before: Tensor) -> Tensor:
    """The m = max(forget + m, write) of each step [batch, step, heads], of logarithms of that shape, forget at most 0.

    It starts from `before` [batch, heads], and from 0 where a document `begins` [batch or 1, step].
    """
    total = forget.double().cumsum(1)
    level, first = write - total, before[:, None].double()
    if begins is None:
        return (total + level.cummax(1).values.maximum(first)).to(write.dtype)
    document = begins.cumsum(1)[..., None]
    # No level of a document is below the 0 that it starts from, nor, so far apart, one of those before it above that.
    level = torch.where(begins[..., None], level.maximum(forget - total), level)
    apart = document * level.detach().amax(1, keepdim=True).clamp(min=0)
    level = (level + apart).cummax(1).values - apart
    return (total + torch.where(document > 0, level, level.maximum(first))).to(write.dtype)
