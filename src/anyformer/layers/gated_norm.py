"""A norm that is gated by what it makes: A.X K2 (SK Telecom 2026, from transformers' class)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.norm import RMSNorm, RMSNormSpec
from anyformer.layers.part import Part
from anyformer.spec import Place, Placed, Weight, Width


class GatedRMSNormSpec(RMSNormSpec):
    """y · σ(B silu(A y)) of y, what RMSNorm makes: A maps to `rank` numbers, and B back."""

    of_stream: ClassVar[bool] = True

    rank: Width

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        norm = RMSNormSpec(eps=self.eps, weight=self.weight, weight_offset=self.weight_offset, cast=self.cast)
        into = LinearSpec(d_out=self.rank, axes=("rank", "d_model"))
        back = LinearSpec(d_out=Width(place.shape[-1]), axes=("d_model", "rank"))
        return {"norm": (norm, place), "down": (into, place), "up": (back, place.at(*place.shape[:-1], self.rank))}


class GatedRMSNorm(Part[GatedRMSNormSpec]):
    norm: RMSNorm
    down: Linear
    up: Linear

    def forward(self, x: Tensor) -> Tensor:
        """The x […, *place.shape] normed over its last axis, and gated."""
        y = self.norm(x)
        return y * self.up(F.silu(self.down(y))).sigmoid()
