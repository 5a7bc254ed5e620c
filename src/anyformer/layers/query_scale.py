"""Factors of queries that grow with their positions, so that sums over more keys stay as sharp: log-n (Chiang & Cholak 2022,
arXiv:2202.12172), by any growth (Inkling), Llama 4's steps (Meta 2025, after Nakanishi 2025), and what that paper learns,
Scalable-Softmax (arXiv:2501.19399)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.layers.context import ForwardContext
from anyformer.layers.part import Part
from anyformer.spec import Length, PartSpec, Place, Positive, Weight


class QueryScaleSpec(PartSpec, abstract=True):
    """A factor of each query by its position; its place's shape is (n_heads, width of a query).

    A subclass writes `factors`, or has a module of its own, which is called with the pass.
    """

    def factors(self, position: Tensor) -> Tensor:
        """The factor for each position, of its shape, in float32."""
        raise TypeError(f"{self.kind} does not say its factors")


class QueryScale(Part[QueryScaleSpec]):
    def forward(self, context: ForwardContext) -> Tensor:
        """The factors of a pass [batch or 1, 1, query, 1]."""
        position = context.tokens.position[:, None, :, None]
        return context.once(f"query scale {self.digest}", lambda: self.spec.factors(position))


class LogN(QueryScaleSpec):
    """log(tokens so far) / log(length), from this many tokens on (Qwen); or 1 + growth · ln(tokens so far / length)."""

    length: Length
    growth: Positive | None = None  # None: 1 / ln(length), with which both are one

    def __post_init__(self) -> None:
        possible = self.growth is not None or self.length >= 2
        self.require("length", possible, "must be at least 2 tokens; one has no logarithm to divide by")

    def factors(self, position: Tensor) -> Tensor:
        n = (position + 1).float()
        if self.growth is None:
            return (n.log() / math.log(self.length)).clamp(min=1.0)
        return 1.0 + self.growth * (n / self.length).clamp(min=1.0).log()


class LogSteps(QueryScaleSpec):
    """1 + growth · ln(1 + ⌊(position + start) / length⌋)."""

    length: Length
    growth: Positive = 0.1
    start: int = 0  # what the first position counts as (Llama 4: 1)

    def factors(self, position: Tensor) -> Tensor:
        steps = torch.div(position + self.start, self.length, rounding_mode="floor")
        return 1.0 + self.growth * (1.0 + steps.float()).log()


class SSMaxSpec(QueryScaleSpec):
    """s · ln(tokens so far) + b, a learned s and b for each head."""

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        heads = (place.shape[0],)
        return {
            "scale": Weight(heads, ("heads",), "gain", fill=0.0),
            "bias": Weight(heads, ("heads",), "gain", fill=1.0),
        }


class SSMax(Part[SSMaxSpec]):
    scale: Tensor
    bias: Tensor

    def forward(self, context: ForwardContext) -> Tensor:
        """The factors of a pass [batch or 1, heads, query, 1]."""
        position = context.tokens.position[:, None, :, None]
        n = context.once("logarithm of tokens so far", lambda: (position + 1).float().log())
        return self.scale[:, None, None] * n + self.bias[:, None, None]
