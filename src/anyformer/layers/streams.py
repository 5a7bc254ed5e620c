"""Streams of one width side by side, which a residual opens and closes and connections read and write: what they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from torch import Tensor

from anyformer.errors import SpecError
from anyformer.layers.block import in_turn
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.part import Part
from anyformer.layers.residual import Branches
from anyformer.spec import ConnectionSpec, Count, Place, ResidualSpec


class SideBySideSpec(ResidualSpec, abstract=True):
    """Streams of d_model features side by side, n of them."""

    sums_normed = False
    n: Count = Count(4)

    def __post_init__(self) -> None:
        self.require("n", self.n > 1, "is one stream, which Add is; give 2 or more")

    @property
    def n_streams(self) -> int:
        return self.n


R = TypeVar("R", bound=SideBySideSpec)


class EqualStreams(Part[R], Generic[R]):
    """The module of streams that all begin as the embedding; a subclass writes `close`."""

    def open(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The streams side by side [batch, token, n · d_model], each of them x [batch, token, d_model]."""
        return x.repeat(1, 1, self.spec.n)

    def step(self, state: Tensor, branches: Branches, context: ForwardContext) -> tuple[Tensor, list[Notes]]:
        """The streams after branches have read their mean [batch, token, d_model] and are added to all, and their notes."""
        y, notes = branches(state.unflatten(-1, (self.spec.n, -1)).mean(-2), context)
        return state + y.repeat(1, 1, self.spec.n), notes


class EachSublayerSpec(ConnectionSpec, abstract=True):
    """A connection whose sublayers read and write the streams each in a way of its own, by a part of `sublayers`."""

    def beside(self, sublayers: tuple[Any, ...]) -> tuple[Any, ...]:
        """All: what they write to is no sum that a norm could read."""
        return sublayers


C = TypeVar("C", bound=EachSublayerSpec)


class EachSublayer(Part[C], Generic[C]):
    """The module of such a connection, whose parts have the residual's `step`."""

    sublayers: Any

    def forward(
        self, state: Tensor, sublayers: Any, residual: Any, context: ForwardContext, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """The streams side by side [batch, token, n · d_model] after the layer, and the notes of its sublayers."""
        return in_turn(sublayers, state, list(self.sublayers), context, stores)


def several(connection: ConnectionSpec, place: Place, residual: str) -> int:
    """How many streams there are to connect. Raises SpecError for one alone, naming the residual that has several."""
    if place.n_streams == 1:
        raise SpecError(
            f"{connection.kind} connects streams side by side, and here is one; give the stack the residual {residual}"
        )
    return place.n_streams
