"""A convolution whose kernels are made of the text: Jiang et al. 2020, arXiv:2008.02496 (ConvBERT), sections 2.2 and 2.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.convolution import neighbours
from anyformer.layers.linear import Linear, LinearSpec, shared_width
from anyformer.layers.part import Part
from anyformer.spec import Count, Few, MixerSpec, Place, Placed, Sizes, TrueShare, Weight, Width


class SpanConvolutionSpec(MixerSpec):
    """Out(Σ_j w_j ⊙ (V x)_{i+j}) over the span around token i, w = softmax(kernel(key(D x) ⊙ q)) in each head, D by channel.

    The queries q are those of the attention beside it, which has as many heads, as wide. Beyond the ends of a document are
    zeros, which take weight. For encoders: it sees ahead.
    """

    counted_as: ClassVar[str | None] = "convolution"
    flops_as: ClassVar[str | None] = "convolution"

    n_heads: Count
    share: TrueShare | None = None  # of d_model, that all heads together are as wide as; None: all of it
    size: Few = 9  # tokens of a span, 2 r + 1
    queries: str = "beside"  # the name under which attention lends them

    def __post_init__(self) -> None:
        self.require("size", self.size % 2 == 1, "must be odd: as many tokens before as after")

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"span": Weight((place.d_model, 1, self.size), ("channels", "one", "tokens"))}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        width = shared_width(place.d_model, self.share)
        self.require("n_heads", width % self.n_heads == 0, f"does not divide {width}, the width of all heads together")
        into = LinearSpec(d_out=Width(width), bias=True, axes=("heads", "d_model"))
        kernel = LinearSpec(d_out=Width(self.n_heads * self.size), bias=True)
        return {
            "key": (into, place.at(place.d_model)),
            "kernel": (kernel, place.at(width)),
            "value": (into, place.at(place.d_model)),
            "out": (LinearSpec(role="output", axes=("d_model", "heads")), place.at(width)),
        }

    def borrows(self) -> Mapping[str, str]:
        return {"queries": self.queries}

    def unfit(self, what: str, lender: MixerSpec, place: Place) -> str | None:
        if not isinstance(lender, AttentionSpec):
            return "those are no attention's"
        try:
            n_heads, width, _ = lender.projection.sizes(place)
        except SpecError:
            return None  # where d_model does not fit those heads, as is said where they are made
        own = shared_width(place.d_model, self.share) / self.n_heads
        if (n_heads, width) == (self.n_heads, own):
            return None
        return f"those are {n_heads} heads of {width}, and it has {self.n_heads} of {own:g}"

    def shows_later(self) -> bool:
        return self.size > 1

    def together(self) -> str | None:
        return "mixes tokens with their neighbours"

    def resized(self, to: Sizes) -> SpanConvolutionSpec:
        return to.fields(self, n_heads=to.heads(self.n_heads, self.n_heads, None)[0])


class SpanConvolution(Part[SpanConvolutionSpec]):
    key: Linear
    kernel: Linear
    value: Linear
    out: Linear
    span: Tensor

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """What spans give [batch, token, d_model] for x of that shape; no notes."""
        size, document = self.spec.size, context.tokens.document
        q = context.memo.found[f"queries {self.spec.queries}"].transpose(1, 2).flatten(2)
        keys = self.key(_weighed(neighbours(x, size, document), self.span[:, 0].unbind(-1)))
        weights = self.kernel(keys * q).unflatten(-1, (self.spec.n_heads, size)).softmax(-1)
        values = neighbours(self.value(x), size, document)
        heads = [each.unflatten(-1, (self.spec.n_heads, -1)) for each in values]
        return self.out(_weighed(heads, [w[..., None] for w in weights.unbind(-1)]).flatten(2)), {}


def _weighed(each: list[Tensor], weights: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """The sum of the products, one by one."""
    y = each[0] * weights[0]
    for x, weight in zip(each[1:], weights[1:], strict=True):
        y = torch.addcmul(y, x, weight)
    return y
