"""Batch normalisation (Ioffe & Szegedy 2015, arXiv:1502.03167) over the real tokens of a batch, padding left out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.errors import SpecError
from anyformer.layers.context import ForwardContext
from anyformer.layers.norm import NormSpec
from anyformer.layers.part import Part
from anyformer.spec import Caveat, Place, Positive, SomeShare, Weight


class BatchNormSpec(NormSpec):
    """(x - mean) / sqrt(variance + eps) of each feature, times a weight, plus a bias.

    In training, which is a pass with rates of dropout, be they 0, the statistics are those of the batch's real tokens, and
    the kept ones move towards them by `momentum`; otherwise the kept ones are used.
    """

    eps: Positive = 1e-5
    momentum: SomeShare = 0.1
    reads_tokens = True

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        if len(place.shape) != 1:
            raise SpecError("BatchNorm has statistics of the stream's features, not of heads; take another norm there")
        axes = ("d_model",)
        return {
            "weight": Weight(place.shape, axes, "gain", fill=1.0),
            "bias": Weight(place.shape, axes, "bias", fill=0.0),
            "mean": Weight(place.shape, axes, "bias", fill=0.0, trainable=False),
            "variance": Weight(place.shape, axes, "gain", fill=1.0, trainable=False),
        }

    def caveats(self) -> tuple[Caveat, ...]:
        return (Caveat("causality", "in training, the statistics are of all tokens of the batch, later ones too"),)


class BatchNorm(Part[BatchNormSpec]):
    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor

    def forward(self, x: Tensor, context: ForwardContext | None = None) -> Tensor:
        """The normed x [batch, token, d_model]. Raises SpecError without a pass that tells what is padding."""
        if context is None:
            raise SpecError(
                "BatchNorm stands where nothing tells it what is padding; let it be a norm of a block or stack"
            )
        mean, variance = self.mean.float(), self.variance.float()
        if context.dropout is not None:
            mean, variance = self.of_batch(x.float(), context)
        scale = self.weight * (variance + self.spec.eps).rsqrt()
        return ((x - mean) * scale + self.bias).to(x.dtype)

    def of_batch(self, x: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        """(mean, variance) of the real tokens, and let the kept ones move towards them."""
        document = context.tokens.document
        real = x.new_ones(x.shape[:2]) if document is None else (document > 0).to(x.dtype).expand(x.shape[:2])
        n, share = real.sum(), real[..., None]
        mean = (x * share).sum((0, 1)) / n.clamp(min=1)
        variance = ((x - mean).square() * share).sum((0, 1)) / n.clamp(min=1)
        if context.again:  # in the backward pass: this batch has moved them already
            return mean, variance
        with torch.no_grad():
            momentum = self.spec.momentum * (n > 0)  # padding alone moves nothing
            self.mean.lerp_(mean.to(self.mean.dtype), momentum.to(self.mean.dtype))
            unbiased = variance * (n / (n - 1).clamp(min=1))
            self.variance.lerp_(unbiased.to(self.variance.dtype), momentum.to(self.variance.dtype))
        return mean, variance
