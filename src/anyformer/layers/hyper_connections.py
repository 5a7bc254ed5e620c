"""Hyper-connections: a layer reads a mixture of streams and writes to all of them. Zhu et al. 2024, arXiv:2409.19606.

Manifold-constrained (Xie et al. 2025, arXiv:2512.24880): what passes from streams to streams is doubly stochastic, so that no
depth makes it grow or vanish. All coefficients are of the token, from all of its streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.context import ForwardContext, Notes
from anyformer.layers.execution import as_given, exact
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.part import Part
from anyformer.layers.residual import Branches
from anyformer.layers.streams import EachSublayer, EachSublayerSpec, EqualStreams, SideBySideSpec, several
from anyformer.spec import (
    Cost,
    Count,
    MapSpec,
    PartSpec,
    Place,
    Placed,
    Positive,
    Share,
    Weight,
    Workload,
)


class StreamCoefficientsSpec(PartSpec):
    """scale · W norm(streams) + bias: numbers of a token from its streams as one vector, in groups of a scale each."""

    sizes: tuple[int, ...]  # of the groups
    norm: MapSpec | None = RMSNormSpec(weight=False)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n = sum(self.sizes)
        return {
            "weight": Weight((n, place.shape[-1]), ("coefficients", "d_model")),
            "bias": Weight((n,), ("coefficients",), "bias", fill=0.0),
            "scale": Weight((len(self.sizes),), ("groups",), "gain", fill=1.0),
        }

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"norm": self.norm and (self.norm, place)}

    def cost(self, place: Place, workload: Workload) -> Cost:
        return Cost({"streams": 2 * sum(self.sizes) * place.shape[-1] * workload.tokens})


class StreamCoefficients(Part[StreamCoefficientsSpec]):
    """Computes in float32 at least, whatever the model's precision, as a router does."""

    weight: Tensor
    bias: Tensor
    scale: Tensor
    norm: nn.Module

    def forward(self, state: Tensor) -> tuple[Tensor, ...]:
        """The groups, each [batch, token, its size], of a state [batch, token, n · d_model]."""
        with as_given(state):
            x, sizes = exact(state), self.spec.sizes
            x = F.linear(self.norm(x), self.weight.to(x.dtype))
            biases, scales = self.bias.to(x.dtype).split(sizes), self.scale.to(x.dtype)
            return tuple(
                y * scales[i] + bias for i, (y, bias) in enumerate(zip(x.split(sizes, -1), biases, strict=True))
            )


class HyperStreamsSpec(SideBySideSpec):
    """Streams side by side that all begin as the embedding; at the end their sum, each weighed by σ(coefficient) + least, or
    their mean.

    What no connection runs on them reads their mean and is added to all.
    """

    norm: MapSpec | None = RMSNormSpec(weight=False)
    least: Positive = 1e-6
    ends: Literal["weighed", "mean"] = "weighed"

    def parts(self, place: Place) -> Mapping[str, Placed]:
        if self.ends == "mean":
            return {"end": None}
        end = StreamCoefficientsSpec(sizes=(self.n,), norm=self.norm)
        return {"end": (end, place.at(self.n * place.d_model))}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The coefficients at the end, and the weighted sum."""
        summed = 2 * self.n * place.d_model * workload.tokens if self.ends == "weighed" else 0
        return super().cost(place, workload) + Cost({"streams": summed})


class HyperStreams(EqualStreams[HyperStreamsSpec]):
    end: StreamCoefficients | None

    def close(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(the weighted sum [batch, token, d_model] of the streams, or their mean, the state)."""
        if self.end is None:
            return state.unflatten(-1, (self.spec.n, -1)).mean(-2), state
        (said,) = self.end(state)
        return _weighed(said.sigmoid() + self.spec.least, state), state


class HyperConnectionSpec(EachSublayerSpec):
    """X ← post ⊗ y + Mᵀ X, y = branches(pre · X): X the streams, pre = σ(·) + least, post = most σ(·) + floor, M made doubly
    stochastic.

    That is Sinkhorn's way: the softmax of each row, plus least, then columns and rows in turn divided by their sums plus least,
    columns `iterations` times. Each sublayer has coefficients of its own.
    """

    iterations: Count | None = Count(20)  # None: M is the identity, and each stream is by itself (HY 4)
    norm: MapSpec | None = RMSNormSpec(weight=False)
    least: Positive = 1e-6
    most: Positive = 2.0
    floor: Share = 0.0

    def parts(self, place: Place) -> Mapping[str, Placed]:
        several(self, place, "HyperStreams")
        return {"sublayers": [(HyperMixingSpec(connection=self), place) for _ in range(place.n_sublayers)]}


class HyperMixingSpec(PartSpec):
    """How one sublayer of a connection reads and writes the streams."""

    connection: HyperConnectionSpec

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n = place.n_streams
        mixing = () if self.connection.iterations is None else (n * n,)
        said = StreamCoefficientsSpec(sizes=(n, n, *mixing), norm=self.connection.norm)
        return {"coefficients": (said, place.at(n * place.d_model))}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The coefficients, and the products with the streams of those that they are read by, and of those that mix them."""
        n = place.n_streams
        read = n + (0 if self.connection.iterations is None else n * n)
        return super().cost(place, workload) + Cost({"streams": 2 * read * place.d_model * workload.tokens})


class HyperMixing(Part[HyperMixingSpec]):
    coefficients: StreamCoefficients

    def step(self, state: Tensor, branches: Branches, context: ForwardContext) -> tuple[Tensor, list[Notes]]:
        """The streams side by side [batch, token, n · d_model] after branches have read and written, and their notes."""
        n, spec = self.place.n_streams, self.spec.connection
        pre, post, *mixing = self.coefficients(state)
        y, notes = branches(_weighed(pre.sigmoid() + spec.least, state), context)
        written = (spec.most * post.sigmoid() + spec.floor).to(y.dtype)[..., None] * y[..., None, :]
        streams = state.unflatten(-1, (n, -1))
        if spec.iterations is not None:
            matrices = doubly_stochastic(mixing[0].unflatten(-1, (n, n)), spec.iterations, spec.least)
            streams = matrices.to(state.dtype).mT @ streams
        return (streams + written).flatten(-2), notes


class HyperConnection(EachSublayer[HyperConnectionSpec]):
    """Its parts are `HyperMixing`."""


def doubly_stochastic(logits: Tensor, iterations: int, least: float) -> Tensor:
    """Matrices [..., row, column] whose rows and columns sum to about 1, of logits of that shape. Sinkhorn & Knopp 1967."""
    mixing = logits.softmax(-1) + least
    mixing = mixing / (mixing.sum(-2, keepdim=True) + least)
    for _ in range(iterations - 1):
        mixing = mixing / (mixing.sum(-1, keepdim=True) + least)
        mixing = mixing / (mixing.sum(-2, keepdim=True) + least)
    return mixing


def _weighed(weights: Tensor, state: Tensor) -> Tensor:
    """The sum [batch, token, d_model] of streams side by side, each times its weight [batch, token, n]."""
    return (weights.to(state.dtype)[..., None, :] @ state.unflatten(-1, (weights.shape[-1], -1))).squeeze(-2)
