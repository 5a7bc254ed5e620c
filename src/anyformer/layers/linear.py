"""Linear maps, and the learned gain and shift of ReZero (Bachlechner et al. 2020, arXiv:2003.04887) and Fixup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.part import Part
from anyformer.spec import Cost, Load, MapSpec, Site, Weight, Width


class LinearSpec(MapSpec):
    """y = W x + b."""

    d_out: Width | None = None  # None: d_model
    bias: bool = False
    role: Literal["matrix", "output"] = "matrix"
    axes: tuple[str, str] = ("d_out", "d_in")

    def width_out(self, site: Site) -> int:
        return self.d_out or site.d_model

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        d_out = self.width_out(site)
        return {
            "weight": Weight((d_out, site.shape[-1]), self.axes, self.role),
            "bias": Weight((d_out,), self.axes[:1], "bias", fill=0.0) if self.bias else None,
        }

    def cost(self, site: Site, load: Load) -> Cost:
        return Cost({"linear": 2 * self.width_out(site) * site.shape[-1] * load.tokens})


class Linear(Part[LinearSpec]):
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class GainSpec(MapSpec):
    """A learned factor, one for all features or one each; ReZero's is one number that starts from 0."""

    start: float = 1.0
    over: Literal["all", "features"] = "all"

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        shape = () if self.over == "all" else site.shape
        return {"weight": Weight(shape, ("d_model",) * len(shape), "gain", fill=self.start)}


class Gain(Part[GainSpec]):
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ShiftSpec(MapSpec):
    """A learned summand, one for all features or one each; Fixup's is one number that starts from 0."""

    start: float = 0.0
    over: Literal["all", "features"] = "all"

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        shape = () if self.over == "all" else site.shape
        return {"bias": Weight(shape, ("d_model",) * len(shape), "bias", fill=self.start)}


class Shift(Part[ShiftSpec]):
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class ChainSpec(MapSpec):
    """Maps one after the other: Fixup's gain then shift."""

    maps: tuple[MapSpec, ...]


class Chain(Part[ChainSpec]):
    maps: list[torch.nn.Module]

    def forward(self, x: Tensor) -> Tensor:
        for step in self.maps:
            x = step(x)
        return x
