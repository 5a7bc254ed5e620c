"""A convolution over neighbouring tokens beside the first layer: DeBERTa v2, arXiv:2006.03654, appendix (nGiE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.activation import ActivationSpec
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.part import Part
from anyformer.spec import Cost, Few, MixerSpec, Place, Weight, Workload


class ConvolutionSpec(MixerSpec):
    """activation(W [x_{i-r} … x_i … x_{i+r}] + b), with zeros beyond the ends of a document; for encoders: it sees ahead."""

    counted_as: ClassVar[str | None] = "convolution"

    size: Few  # tokens that it sees, 2 r + 1
    activation: ActivationSpec
    reads: Literal["self", "input"] = "input"  # the layer's own input, or the embedding's output

    def __post_init__(self) -> None:
        self.require("size", self.size % 2 == 1, "must be odd: as many tokens before as after")

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {
            "weight": Weight((place.d_model, place.d_model, self.size), ("d_out", "d_in", "tokens"), "output"),
            "bias": Weight((place.d_model,), ("d_out",), "bias", fill=0.0),
        }

    def reads_input(self) -> bool:
        return self.reads == "input"

    def shows_later(self) -> bool:
        return self.size > 1

    def together(self) -> str | None:
        return "mixes tokens with their neighbours"

    def cost(self, place: Place, workload: Workload) -> Cost:
        return Cost({"convolution": 2 * self.size * place.d_model**2 * workload.tokens})


class Convolution(Part[ConvolutionSpec]):
    weight: Tensor
    bias: Tensor
    activation: nn.Module

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """What neighbours give [batch, token, d_model] for x of that shape; no notes."""
        x = x if self.spec.reads == "self" else context.given("input")
        around = torch.cat(neighbours(x, self.spec.size, context.tokens.document), -1)  # [batch, token, size · width]
        return self.activation(F.linear(around, self.weight.permute(0, 2, 1).flatten(1), self.bias)), {}


def neighbours(x: Tensor, size: int, document: Tensor | None) -> list[Tensor]:
    """Each token's neighbours, from the first before to the last after, each [batch, token, width] as x.

    They are zero where they are of another document [batch or 1, token], or there are none. `size` is odd.
    """
    r, n = size // 2, x.shape[1]
    wide = F.pad(x, (0, 0, r, r))
    shifted = [wide[:, i : i + n] for i in range(size)]
    if document is None:
        return shifted
    others = F.pad(document, (r, r))
    same = [(others[:, i : i + n] == document) & (document > 0) for i in range(size)]
    return [neighbour * mask[..., None] for neighbour, mask in zip(shifted, same, strict=True)]
