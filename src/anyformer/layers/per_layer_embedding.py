"""Per-layer embeddings: a table of tokens for each layer, read where the layer wants it (Gemma 3n; the configuration of 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.layers.activation import GELU, ActivationSpec
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.embedding import Table
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.part import Part
from anyformer.spec import MapSpec, MixerSpec, Place, Placed, TableSpec, Width


class PerLayerEmbeddingSpec(MixerSpec):
    """up(activation(gate(x)) · e), e = (norm(W input / √d_model) + √width · row) / √2, the token's row in the layer's table.

    `input` is the embedding's output; without its row, the same of the input alone. Layers share a norm by its `shared` name.
    """

    counted_as: ClassVar[str | None] = "per-layer embeddings"
    flops_as: ClassVar[str | None] = "per-layer embeddings"

    table: TableSpec  # of a width of its own; tokens beyond its rows read the first
    activation: ActivationSpec = GELU(form="tanh")
    norm: MapSpec | None = None

    @property
    def width(self) -> Width:
        """Of a row, and of what the layer makes of the stream before it reads it."""
        if self.table.width is None:
            raise self.refusal("table", "has no width; give it one, narrower than d_model")
        return self.table.width

    def __post_init__(self) -> None:
        _ = self.width

    def parts(self, place: Place) -> Mapping[str, Placed]:
        narrow, down = place.at(self.width), LinearSpec(d_out=self.width, axes=("d_layer", "d_model"))
        return {
            "table": (self.table, narrow),
            "project": (down, place),
            "norm": self.norm and (self.norm, narrow),
            "gate": (down, place),
            "activation": (self.activation, narrow),
            "up": (LinearSpec(role="output", axes=("d_model", "d_layer")), narrow),
        }

    def reads_input(self) -> bool:
        return True

    def together(self) -> str | None:
        return None


class PerLayerEmbedding(Part[PerLayerEmbeddingSpec]):
    table: Table
    project: Linear
    norm: nn.Module
    gate: Linear
    activation: nn.Module
    up: Linear

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape and the pass's ids and embeddings; no notes."""
        spec, ids = self.spec, context.ids
        assert ids is not None
        said = self.norm(self.project(context.given("input")) * self.place.d_model**-0.5)
        row = self.table(torch.where(ids < self.table.rows, ids, 0)) * spec.width**0.5
        return self.up(self.activation(self.gate(x)) * ((said + row) * 2**-0.5)), {}
