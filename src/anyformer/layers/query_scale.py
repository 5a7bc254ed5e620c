"""Factors of queries that grow with their positions, so that sums over more keys stay as sharp: log-n (Chiang & Cholak 2022,
arXiv:2202.12172), by any growth (Inkling), and Llama 4's steps (Meta 2025, after Nakanishi 2025, arXiv:2501.19399)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anyformer.layers.tokens import ForwardContext
from anyformer.spec import Length, Positive, Spec


class QueryScaleSpec(Spec, abstract=True):
    """A factor of each query by its position. A subclass writes `factors`."""

    def factors(self, position: Tensor) -> Tensor:
        """The factor for each position, of its shape, in float32."""
        raise TypeError(f"{self.kind} does not say its factors")

    def factors_of(self, context: ForwardContext) -> Tensor:
        """The `factors` of a pass [batch or 1, 1, query, 1]."""
        position = context.tokens.position[:, None, :, None]
        return context.once(f"query scale {self.key}", lambda: self.factors(position))


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
