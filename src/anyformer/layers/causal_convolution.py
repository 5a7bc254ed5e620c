"""A causal convolution: each channel over its own last tokens. Gu & Dao 2023, arXiv:2312.00752, figure 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.activation import ActivationSpec
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.memory_efficient import MemoryEfficientConvolution, saves_activations
from anyformer.layers.part import Part
from anyformer.layers.recurrence import Steps, steps_of
from anyformer.spec import Few, PartSpec, Place, Weight


class CausalConvolutionSpec(PartSpec):
    """Activation(Σ_m w_m ⊙ x_{t - dilation (size - 1 - m)} + b), with zeros before the first token of a document.

    Over a head, of a place of heads and their width, w_m is a matrix that maps the channels of each head.
    """

    size: Few = 4  # tokens that it sees, its own among them
    dilation: Few = 1  # from one of them to the next (Engram: the longest n-gram)
    bias: bool = False
    activation: ActivationSpec | None = None
    over: Literal["channel", "head"] = "channel"  # what is convolved by itself

    @property
    def tail(self) -> int:
        """How many of the last inputs a later token may see."""
        return self.dilation * (self.size - 1)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        self.require(
            "over", self.over == "channel" or len(place.shape) == 2, "needs heads, and here are none; take channel"
        )
        n, width = math.prod(place.shape), place.shape[-1] if self.over == "head" else 1
        return {
            "weight": Weight((n, width, self.size), ("channels", "one", "tokens"), std=(width * self.size) ** -0.5),
            "bias": Weight((n,), ("channels",), "bias", fill=0.0) if self.bias else None,
        }


class CausalConvolution(Part[CausalConvolutionSpec]):
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor, steps: Steps, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        """(y [batch, step, channels], the tail for the next call) of x of that shape.

        `tail` [batch, tail, channels]: the inputs before, of the document that goes on; None: there are none.
        """
        last, dilation, n = self.spec.tail, self.spec.dilation, x.shape[1]
        pieces = None if steps.piece is None else F.pad(steps.piece, (last, 0))
        apart = self.spec.over == "channel"
        if apart and tail is None and pieces is None and dilation == 1 and saves_activations():
            y, wide = MemoryEfficientConvolution.apply(x, self.weight[:, 0]), F.pad(x[:, -last:], (0, 0, last, 0))
        else:
            wide = F.pad(x, (0, 0, last, 0)) if tail is None else torch.cat((tail.to(x.dtype), x), 1)
            y = x * self.weight[:, 0, -1] if apart else self._within_heads(x, -1)
            for m, i in enumerate(range(0, last, dilation)):
                tap = wide[:, i : i + n]
                if pieces is not None:
                    tap = tap * (pieces[:, i : i + n] == pieces[:, last:])[..., None]
                y = torch.addcmul(y, tap, self.weight[:, 0, m]) if apart else y + self._within_heads(tap, m)
        y = y if self.bias is None else y + self.bias
        y = y if self.spec.activation is None else self.spec.activation(y)
        return y, steps.last(wide, last)

    def _within_heads(self, x: Tensor, i: int) -> Tensor:
        """[batch, step, channels] of x of that shape, by the i-th matrix of each head."""
        n_heads = self.place.shape[0]
        each = self.weight[..., i].unflatten(0, (n_heads, -1))
        return torch.einsum("bthi,hoi->btho", x.unflatten(-1, (n_heads, -1)), each).flatten(-2)


def with_last(
    each: Mapping[str, tuple[Tensor, CausalConvolution]], context: ForwardContext, store: Store
) -> list[Tensor]:
    """Each x [batch, token, channels] and its convolution's, whose tails are kept by these names."""
    steps, state, found, tails = steps_of(context, store), store.state, [], {}
    for name, (x, convolution) in each.items():
        y, tails[name] = convolution(steps.taken(x), steps, (state or {}).get(name))
        found.append(x + steps.given(y))
    if state is not None:
        store.keep(tails)
    return found
