"""A convolution of attention's values over neighbouring tokens, beside what it gives: Xiong et al. 2021, arXiv:2102.03902."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.part import Part
from anyformer.spec import Caveat, PartSpec, Place, Weight, Window

if TYPE_CHECKING:
    from anyformer.layers.attention import AttentionSpec


class ValueConvolutionSpec(PartSpec):
    """Σ_j w_j v_{i+j} over the tokens around token i, by one w for each head; for encoders: it sees ahead.

    Beyond the ends of a document are zeros. Its place's shape is (n_heads, width of a value).
    """

    size: Window = Window(33)  # tokens that it sees, 2 r + 1

    def __post_init__(self) -> None:
        self.require("size", self.size % 2 == 1, "must be odd: as many tokens before as after")

    def shows_later(self) -> bool:
        """As `MixerSpec.shows_later`."""
        return self.size > 1

    def caveats(self) -> tuple[Caveat, ...]:
        return (Caveat("cache", "a token's neighbours are those that come after it, too"),)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((place.shape[0], self.size), ("heads", "tokens"))}

    def misfit(self, spec: AttentionSpec) -> tuple[str, str] | None:
        """("convolution", why it does not go with this attention); None where it does."""
        if spec.reads != "self" or spec.keys is not None or spec.compressor or spec.transient or spec.difference:
            return "convolution", "is of a layer's own values, one of each token and head; leave what adds to them out"
        if spec.projection.stored_heads != getattr(spec.projection, "n_heads", 0):
            return "convolution", "is of one value for each head of queries; take GQA with as many heads of keys"
        return None


class ValueConvolution(Part[ValueConvolutionSpec]):
    weight: Tensor

    def forward(self, v: Tensor, document: Tensor | None) -> Tensor:
        """What neighbours give [batch, heads, token, width] for values v of that shape, of documents [batch or 1, token]."""
        size, n = self.spec.size, v.shape[2]
        r = size // 2
        wide, y = F.pad(v, (0, 0, r, r)), torch.zeros_like(v)
        others = None if document is None else F.pad(document, (r, r))
        for i in range(size):
            by = self.weight[:, i, None, None].to(v.dtype)
            if others is not None and document is not None:
                by = by * ((others[:, i : i + n] == document) & (document > 0))[:, None, :, None]
            y = torch.addcmul(y, wide[:, :, i : i + n], by)
        return y
