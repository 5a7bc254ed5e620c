"""A layer that computes something aside: its last sublayers read it beside the stream, which it does not enter.

Glorioso et al. 2024 (Zamba), arXiv:2405.16712, section 2, equation 6: a shared block of attention and a feed-forward, and what it
gives is added to what Mamba reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from anyformer.errors import SpecError
from anyformer.layers.block import in_turn
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.part import Part
from anyformer.layers.residual import AddSpec
from anyformer.spec import ConnectionSpec, Few, Place, Placed


class AsideSpec(ConnectionSpec):
    """z = the first `n` sublayers of x, one on another and none around itself; the next one reads x + z and writes to x."""

    n: Few = 2

    def beside(self, sublayers: tuple[Any, ...]) -> tuple[Any, ...]:
        return sublayers[self.n :]

    def misfit(self, sublayers: tuple[Any, ...]) -> str | None:
        if len(sublayers) <= self.n:
            return f"leaves none of {len(sublayers)} sublayers to read what the first {self.n} give; lower n"
        if any(each.skip for each in sublayers[: self.n]):
            return f"has no way around the first {self.n} sublayers that a skip could read; leave it out there"
        return None

    def parts(self, place: Place) -> Mapping[str, Placed]:
        if place.n_streams != 1:
            raise SpecError(
                "Aside reads one stream, and here are several side by side; give the stack the residual Add"
            )
        return {"alone": (AddSpec(scale=0.0), place)}


class Aside(Part[AsideSpec]):
    alone: Any

    def forward(
        self, state: Tensor, sublayers: Any, residual: Any, context: ForwardContext, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """The stream [batch, token, d_model] after the layer, and the notes of its sublayers."""
        each, n = list(sublayers), self.spec.n
        aside, notes = in_turn(each[:n], state, self.alone, context, stores)
        state, more = in_turn(each[n:], state, residual, context, stores, state + aside)
        return state, notes + more
