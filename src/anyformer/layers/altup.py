"""AltUp: streams of which a layer computes one and predicts the others. Baykal et al. 2023, arXiv:2301.13310, as in Gemma 3n.

The residual opens the streams from the embedding and closes them to their mean; each layer's connection mixes them by what the
first one says (`predict`), runs on the first of the mixtures, and passes what that changed on to all (`correct`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.layers.block import in_turn
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.part import Part
from anyformer.layers.residual import AddSpec, Branches
from anyformer.layers.streams import SideBySideSpec, several
from anyformer.spec import (
    ConnectionSpec,
    Cost,
    MapSpec,
    Place,
    Placed,
    Positive,
    ResidualSpec,
    Whole,
    Width,
    Workload,
)


class StreamsSpec(SideBySideSpec):
    """Streams side by side: the embedding and linear maps of it, each as long as it is; at the end likewise, and their mean.

    What no connection runs on the first alone reads the first and is added to all others (Gemma 3n's per-layer embeddings).
    """

    flops_as: ClassVar[str | None] = "streams"

    least: Positive = 1e-5  # that the mean square of a map counts as

    def parts(self, place: Place) -> Mapping[str, Placed]:
        maps: Placed = [(LinearSpec(), place) for _ in range(self.n - 1)]
        return {"begin": maps, "end": maps}


class Streams(Part[StreamsSpec]):
    begin: Any
    end: Any

    def open(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The streams side by side [batch, token, n · d_model] of x [batch, token, d_model]."""
        return torch.cat((x, *(self._as_long(each(x), x) for each in self.begin)), -1)

    def step(self, state: Tensor, branches: Branches, context: ForwardContext) -> tuple[Tensor, list[Notes]]:
        """The streams after branches have read the first [batch, token, d_model] and are added to all others, and their notes."""
        first, others = state.split((self.place.d_model, state.shape[-1] - self.place.d_model), -1)
        y, notes = branches(first, context)
        return torch.cat((first, others + y.repeat(1, 1, self.spec.n - 1)), -1), notes

    def close(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(the mean [batch, token, d_model] of the first stream and of maps of the others, each as long as it is, the state)."""
        first, *others = state.chunk(self.spec.n, -1)
        ended = [self._as_long(each(x), first) for each, x in zip(self.end, others, strict=True)]
        return torch.stack((first, *ended)).mean(0), state

    def _as_long(self, y: Tensor, x: Tensor) -> Tensor:
        """Y at the magnitude of x, both [batch, token, d_model]."""
        of_x = x.square().mean(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny).sqrt()
        return y * of_x / y.square().mean(-1, keepdim=True).clamp(min=self.spec.least).sqrt()


class AltUpSpec(ConnectionSpec):
    """X̂ = X + C X; y = layer(X̂₁); X = X̂ + (1 + g) (y - X̂₁), where C and g are linear in tanh(W norm(X₁ or y) / d_model)."""

    inside: Whole | None = None  # how many of the sublayers run on the first stream; None: all. The rest come after
    norm: MapSpec | None = RMSNormSpec()
    residual: ResidualSpec = AddSpec()  # of the sublayers inside

    def __post_init__(self) -> None:
        if not self.residual.sums_normed:
            raise self.refusal("residual", "has streams of its own; those inside run on one: take Add")
        if self.residual.within(1) is not self.residual:
            raise self.refusal("residual", "goes by the branches of a whole stack, and a layer has its own: take Add")

    def beside(self, sublayers: tuple[Any, ...]) -> tuple[Any, ...]:
        return () if self.inside is None else sublayers[self.inside :]

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n = several(self, place, "Streams")
        said = place.at(n)
        return {
            "norm": self.norm and (self.norm, place),
            "router": (LinearSpec(d_out=Width(n), axes=("streams", "d_model")), place),
            "predict": (LinearSpec(d_out=Width(n * n), axes=("pairs", "streams")), said),
            "correct": (LinearSpec(d_out=Width(n), axes=("streams", "streams")), said),
            "residual": (self.residual, place),
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        """What the streams say, twice, the coefficients of both steps and the product of those of the first with the streams."""
        n, d = place.n_streams, place.d_model
        return Cost({"streams": 2 * workload.tokens * (2 * n * d + n**3 + n * n + n * n * d)})


class AltUp(Part[AltUpSpec]):
    norm: nn.Module
    router: Linear
    predict: Linear
    correct: Linear
    residual: Any

    def forward(
        self, state: Tensor, sublayers: Any, residual: Any, context: ForwardContext, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """The streams side by side [batch, token, n · d_model] after the layer, and the notes of its sublayers."""
        n, each = self.place.n_streams, list(sublayers)
        inside = len(each) if self.spec.inside is None else self.spec.inside
        streams = state.unflatten(-1, (n, -1))
        mixing = self.predict(self._says(streams[..., 0, :])).unflatten(-1, (n, n))
        predicted = streams + mixing @ streams
        x = predicted[..., 0, :]
        y, notes = in_turn(each[:inside], x, self.residual, context, stores)
        share = 1 + self.correct(self._says(y))
        state = (predicted + share[..., None] * (y - x)[..., None, :]).flatten(-2)
        state, more = in_turn(each[inside:], state, residual, context, stores)
        return state, notes + more

    def _says(self, x: Tensor) -> Tensor:
        """A number for each stream [batch, token, n] of x [batch, token, d_model]."""
        return torch.tanh(self.router(self.norm(x) / self.place.d_model))
