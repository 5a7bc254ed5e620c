"""A bottleneck around a layer, whose sublayers run on a narrow stream: Sun et al. 2020, arXiv:2004.02984 (MobileBERT)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import SpecError
from anyformer.layers.block import in_turn, mapped
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.spec import ConnectionSpec, MapSpec, Place, Placed


class BottleneckSpec(ConnectionSpec):
    """norm(x + out(z)), z being what the sublayers in turn make of into(x), which says how wide their stream is.

    The first of them may read another such map of x in its place, and attention in it values of x itself (`GQA.values_read`).
    """

    flops_as: ClassVar[str | None] = "bottlenecks"

    into: MapSpec
    reads: MapSpec | None = None  # of what the first sublayer reads; None: it reads into(x)
    norm: MapSpec | None = None  # of the sum

    def inner(self, place: Place) -> Place:
        width = self.into.width_out(place)
        return replace(place, d_model=width, shape=(width,), d_outer=place.d_model)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        if place.n_streams != 1:
            raise SpecError("Bottleneck reads one stream, and here are several; give the stack the residual Add")
        width = self.into.width_out(place)
        if self.reads is not None and self.reads.width_out(place) != width:
            raise self.refusal("reads", f"gives another width than into, which is {width}; make them alike")
        return {
            "into": (self.into, place),
            "reads": self.reads and (self.reads, place),
            "out": (LinearSpec(bias=True, role="output", axes=("d_model", "narrow")), place.at(width)),
            "norm": self.norm and (self.norm, place),
        }


class Bottleneck(Part[BottleneckSpec]):
    into: nn.Module
    reads: nn.Module | None
    out: nn.Module
    norm: nn.Module

    def forward(
        self, state: Tensor, sublayers: Any, residual: Any, context: ForwardContext, stores: Iterator[Store]
    ) -> tuple[Tensor, list[Notes]]:
        """The stream [batch, token, d_model] after the layer, and the notes of its sublayers."""
        spec, context.outer = self.spec, state
        read = None if spec.reads is None else mapped(spec.reads, self.reads, state, context)
        z, notes = in_turn(sublayers, mapped(spec.into, self.into, state, context), residual, context, stores, read)
        y = self.out(z)
        if rate := context.rates.residual:
            y = F.dropout(y, rate)
        return mapped(spec.norm, self.norm, state + y, context), notes
