"""Differential attention: what two softmaxes agree on is taken away. Ye et al. 2024, arXiv:2410.05258, section 2.1."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.part import Part
from anyformer.spec import MapSpec, PartSpec, Place, Placed, Positive, Rate, Weight


class DifferentialSpec(PartSpec):
    """(1 - start) · norm(a₁ - λ a₂), λ = exp(q₁·k₁) - exp(q₂·k₂) + start, of four learned vectors.

    Of n heads the i-th and the (i + n/2)-th are a pair: a₁ and a₂ are what each takes of the values of both, side by side. Its
    place's shape is (n_heads, width of a query, width of a value).
    """

    start: Rate | None = None  # None: 0.8 - 0.6 e^(-0.3 l) in layer l of a stack, counted from 0
    norm: MapSpec | None = RMSNormSpec(eps=1e-5, weight=False)  # of each pair's values
    std: Positive = 0.1  # that the four vectors start with

    def within(self, layer: int) -> DifferentialSpec:
        """The part in this layer, counted from 0."""
        return self.but(start=0.8 - 0.6 * math.exp(-0.3 * layer)) if self.start is None else self

    @property
    def begun(self) -> float:
        """What λ is near at first; outside of a stack as in its first layer."""
        return 0.2 if self.start is None else self.start

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        width = place.shape[1]
        return {name: Weight((width,), ("head_dim",), "bias", std=self.std) for name in ("q1", "k1", "q2", "k2")}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"norm": self.norm and (self.norm, place.at(2 * place.shape[2]))}


class Differential(Part[DifferentialSpec]):
    q1: Tensor
    k1: Tensor
    q2: Tensor
    k2: Tensor
    norm: nn.Module

    def forward(self, y: Tensor) -> Tensor:
        """[batch, heads, query, width] of y [batch, heads, query, 2 · width], of `paired` values: a pair's lie in two heads."""
        start = self.spec.begun
        share = torch.exp((self.q1 * self.k1).sum()) - torch.exp((self.q2 * self.k2).sum()) + start
        first, second = y.chunk(2, 1)
        y = self.norm(first - share.to(y.dtype) * second)
        return ((1 - start) * y).unflatten(-1, (2, -1)).transpose(2, 3).flatten(1, 2)


def paired(v: Tensor) -> Tensor:
    """The values [batch, kv heads, key, width] of each head and of its pair's other [batch, kv heads, key, 2 · width]."""
    return torch.cat(v.chunk(2, 1), -1).repeat(1, 2, 1, 1)
