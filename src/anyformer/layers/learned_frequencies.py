"""Rotary frequencies that are learned: LeRoPE, as in Mistral Large 4 (Mistral AI 2026, from transformers' class)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from anyformer.layers.part import Part
from anyformer.spec import PartSpec, Place, Weight


class LearnedFrequenciesSpec(PartSpec):
    """Each frequency times exp(alpha), a number for each pair of features that turns; scaled ones are scaled first.

    Its place's shape is how many pairs there are. With a `shared` name all layers have the same.
    """

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"alpha": Weight(place.shape, ("pairs",), "bias", fill=0.0)}


class LearnedFrequencies(Part[LearnedFrequenciesSpec]):
    alpha: Tensor

    def forward(self, frequencies: Tensor) -> Tensor:
        """Radians a token […, pair], of those that are given."""
        return frequencies * self.alpha.to(frequencies.dtype).exp()
