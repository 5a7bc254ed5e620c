"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450) and RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.execution import exact
from anyformer.layers.memory_efficient import MemoryEfficientLayerNorm, MemoryEfficientRMSNorm, saves_activations
from anyformer.layers.part import Part
from anyformer.spec import MapSpec, Place, Positive, Weight


def _axes(shape: tuple[int, ...]) -> tuple[str, ...]:
    return ("d_model",) if len(shape) == 1 else ("heads", "head_dim")


class NormSpec(MapSpec, abstract=True):
    """Statistics over the last axis of the place's shape; one weight for each number of the shape.

    What derives from it is a norm to cards, diagrams, diffs and times, a user's own too, whatever it is called.
    """

    eps: Positive


class LayerNormSpec(NormSpec):
    """(x - mean) / sqrt(variance + eps), with a weight and a bias, either of which may be left out (OLMo: both)."""

    eps: Positive = 1e-5
    weight: bool = True
    bias: bool = True
    weight_offset: float = 0.0  # LayerNorm1P (Nemotron) stores the weight minus one: 1.0

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        gain = Weight(place.shape, _axes(place.shape), "gain", fill=1.0 - self.weight_offset)
        bias = Weight(place.shape, _axes(place.shape), "bias", fill=0.0)
        return {"weight": gain if self.weight else None, "bias": bias if self.bias else None}


class LayerNorm(Part[LayerNormSpec]):
    weight: Tensor | None
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """The x […, *place.shape] normed over its last axis."""
        weight, bias = self.weight, self.bias
        if weight is not None and self.spec.weight_offset:
            weight = weight + self.spec.weight_offset
        if weight is None or weight.dtype.itemsize < x.dtype.itemsize:
            # PyTorch's operator takes both in a wider type than x, and nothing else of another.
            weight, bias = (None if each is None else each.to(x.dtype) for each in (weight, bias))
        if len(self.place.shape) == 1:
            if x.dtype == torch.float32 and saves_activations():
                return MemoryEfficientLayerNorm.apply(x, weight, bias, self.spec.eps)
            return F.layer_norm(x, self.place.shape, weight, bias, self.spec.eps)
        y = F.layer_norm(x, self.place.shape[-1:], None, None, self.spec.eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias


class RMSNormSpec(NormSpec):
    """x / sqrt(mean of squares + eps), times a weight."""

    eps: Positive = 1e-6
    weight: bool = True
    weight_offset: float = 0.0  # Gemma stores the weight minus one: 1.0
    cast: Literal["before", "after"] = "before"  # back to the input's dtype: before the weight (Llama) or after (Gemma)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        gain = Weight(place.shape, _axes(place.shape), "gain", fill=1.0 - self.weight_offset)
        return {"weight": gain if self.weight else None}


class RMSNorm(Part[RMSNormSpec]):
    weight: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """The x […, *place.shape] normed over its last axis."""
        spec, weight = self.spec, self.weight
        if weight is not None and spec.weight_offset:
            weight = weight + spec.weight_offset
        alike = weight is None or weight.dtype == x.dtype
        if x.dtype == torch.float32 and alike and len(self.place.shape) == 1:
            if saves_activations():
                return MemoryEfficientRMSNorm.apply(x, weight, spec.eps)
            return F.rms_norm(x, self.place.shape, weight, spec.eps)
        y = F.rms_norm(exact(x), self.place.shape[-1:], None, spec.eps)
        if weight is None or spec.cast == "before":
            y = y.to(x.dtype)
            return y if weight is None else weight * y
        return (y * weight.to(y.dtype)).to(x.dtype)
