"""Parts that a user might write, each a specification and its module; the package knows nothing of this file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from anyformer.layers import (
    Content,
    ForwardContext,
    LinearSpec,
    Mask,
    NormSpec,
    Notes,
    Part,
    ScoreSpec,
    Store,
    Tokens,
)
from anyformer.layers.mask import visible
from anyformer.spec import MixerSpec, PartSpec, Place, Placed, Weight, Width, Window


class ManhattanNormSpec(NormSpec):
    """x divided by the mean of its absolute values, times a weight."""

    eps: float = 1e-6

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight(place.shape, ("d_model",), "gain", fill=1.0)}


class ManhattanNorm(Part[ManhattanNormSpec]):
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().mean(-1, keepdim=True) + self.spec.eps) * self.weight


class Dilated(Mask):
    """Keys at a multiple of `rate` tokens from the start of the text."""

    rate: Window

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return (key.position % self.rate == 0) & (query.position >= 0)


class PlacesSpec(PartSpec):
    """A vector of the stream's width for each distance, one table for all layers."""

    farthest: Window

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((self.farthest, place.d_model), ("distance", "d_model"), "table")}


class Places(Part[PlacesSpec]):
    weight: Tensor


class ByProjectedDistanceSpec(ScoreSpec):
    """q · W_k a: the layer's own projection of keys, applied to the distances' vectors, as DeBERTa does."""

    places: PlacesSpec
    reads_content = True

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"places": (self.places, place)}


class ByProjectedDistance(Part[ByProjectedDistanceSpec]):
    places: Places

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        vectors = content.projection.k(self.places.weight).unflatten(
            -1, (-1, content.q.shape[-1])
        )  # [distance, kv heads, …]
        vectors = vectors.repeat_interleave(content.q.shape[1] // vectors.shape[1], 1)
        every = content.q @ vectors.permute(1, 2, 0) * content.q.shape[-1] ** -0.5
        distance = (query.position - key.position).clamp(0, self.spec.places.farthest - 1)
        return every.gather(-1, distance.expand(*every.shape[:-1], -1))


class Before(Mask):
    """The token just before."""

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return query.position - key.position == 1


class LookBackSpec(MixerSpec):
    """A linear map of the token before; what decoding keeps is no key and no value."""

    d_out: Width | None = None

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"map": (LinearSpec(d_out=self.d_out, bias=True, role="output"), place)}

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"input": (place.d_model,)}

    def reach(self) -> int:
        return 2


class LookBack(Part[LookBackSpec]):
    map: nn.Module

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        inputs = store.extend({"input": x})["input"]
        seen = visible(Before(), context.tokens, store.keys or context.tokens, 1)
        assert seen is not None
        return self.map(seen[:, 0].to(x.dtype) @ inputs), {}
