"""A linear map in groups: a matrix of blocks along its diagonal, as in ConvBERT's feed-forwards (arXiv:2008.02496)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.spec import Cost, Count, MapSpec, Place, Weight, Width, Workload


class GroupedLinearSpec(MapSpec):
    """y = W x + b, where each group of outputs reads a group of inputs, as many and as wide as any other."""

    groups: Count
    d_out: Width | None = None  # None: d_model
    bias: bool = False
    role: Literal["matrix", "query", "inner", "output"] = "matrix"

    def width_out(self, place: Place) -> int:
        return self.d_out or place.d_model

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        d_out, d_in = self.width_out(place), place.shape[-1]
        each = f"must divide what it reads, {d_in}, and what it writes, {d_out}"
        self.require("groups", d_out % self.groups == 0 and d_in % self.groups == 0, each)
        shape = (self.groups, d_out // self.groups, d_in // self.groups)
        return {
            "weight": Weight(shape, ("groups", "d_out", "d_in"), self.role),
            "bias": Weight((d_out,), ("d_out",), "bias", fill=0.0) if self.bias else None,
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        return Cost({"linear": 2 * self.width_out(place) * place.shape[-1] // self.groups * workload.tokens})


class GroupedLinear(Part[GroupedLinearSpec]):
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """[…, d_out] of x […, d_in]."""
        y = torch.einsum("...gi,goi->...go", x.unflatten(-1, (self.spec.groups, -1)), self.weight).flatten(-2)
        return y if self.bias is None else y + self.bias


def in_groups(spec: LinearSpec, groups: Count) -> MapSpec:
    """The map in so many groups; the map itself of one."""
    if groups == 1:
        return spec
    return GroupedLinearSpec(groups=groups, d_out=spec.d_out, bias=spec.bias, role=spec.role)
