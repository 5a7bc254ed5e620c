"""LAuReL: what a layer reads, passed around it by a learned map too. Menghani et al. 2024, arXiv:2411.07501, section 2.1 (LR)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.part import Part
from anyformer.spec import MapSpec, MixerSpec, Place, Placed, Width


class LaurelSpec(MixerSpec):
    """x + norm(up(down(x))), of a low rank: a branch beside attention's, on the same normed stream (Gemma 3n)."""

    flops_as: ClassVar[str | None] = "LAuReL"

    rank: Width = Width(64)
    norm: MapSpec | None = None

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {
            "down": (LinearSpec(d_out=self.rank, axes=("rank", "d_model")), place),
            "up": (LinearSpec(role="output", axes=("d_model", "rank")), place.at(self.rank)),
            "norm": self.norm and (self.norm, place),
        }

    def together(self) -> str | None:
        return None


class Laurel(Part[LaurelSpec]):
    down: Linear
    up: Linear
    norm: nn.Module

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; no notes."""
        return x + self.norm(self.up(self.down(x))), {}
