"""Gated residual: streams of which a branch reads a mean that gates weigh, feature by feature, and writes to each a share.

Qwen team 2026, Qwen3.8-Flash-Next: hyper-connections (Zhu et al. 2024, arXiv:2409.19606) with a gated norm, which stands where a
layer's norms do otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.context import ForwardContext, Notes
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.part import Part
from anyformer.layers.residual import AddSpec, Branches
from anyformer.layers.streams import EachSublayer, EachSublayerSpec, EqualStreams, SideBySideSpec, several
from anyformer.spec import MapSpec, PartSpec, Place, Placed, Width


class StreamGatesSpec(PartSpec):
    """mean over streams of σ(up(silu(down(h) / n))) ⊙ h, h = norm(X): each stream normed by itself, gates made of all n."""

    flops_as: ClassVar[str | None] = "streams"

    rank: Width  # of the map to the gates
    norm: MapSpec | None = RMSNormSpec()

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n, d_model = place.n_streams, place.d_model
        down = LinearSpec(d_out=self.rank, axes=("rank", "d_model"))
        return {
            "norm": self.norm and (self.norm, place.at(n, d_model)),
            "down": (down, place.at(n * d_model)),
            "up": (LinearSpec(d_out=Width(n * d_model), axes=("d_model", "rank")), place.at(self.rank)),
        }


class StreamGates(Part[StreamGatesSpec]):
    norm: nn.Module
    down: Linear
    up: Linear

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(what is read [batch, token, d_model], the streams normed) of streams side by side [batch, token, n · d_model]."""
        n = self.place.n_streams
        normed = self.norm(state.unflatten(-1, (n, -1))).flatten(-2)
        gates = self.up(F.silu(self.down(normed) / n)).sigmoid()
        return (gates * normed).unflatten(-1, (n, -1)).mean(-2), normed


class GatedStreamsSpec(SideBySideSpec):
    """Streams side by side that all begin as the embedding; at the end their mean as gates weigh it.

    What no connection runs on them reads their mean and is added to all.
    """

    rank: Width
    norm: MapSpec | None = RMSNormSpec()

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"end": (StreamGatesSpec(rank=self.rank, norm=self.norm), place)}


class GatedStreams(EqualStreams[GatedStreamsSpec]):
    end: StreamGates

    def close(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(the gated mean [batch, token, d_model] of the streams, the state)."""
        return self.end(state)[0], state


class GatedResidualSpec(EachSublayerSpec):
    """X_i ← X_i + 2 σ(w_i · h / n) y, y = branches(gated mean of h), h = norm(X): each sublayer has gates and shares of its own.

    The first few may read and write the streams side by side instead, as they lie.
    """

    rank: Width
    norm: MapSpec | None = RMSNormSpec()
    whole: int = 0  # how many of the first sublayers read all streams, and add to each what is for it (Engram)

    def misfit(self, sublayers: tuple[Any, ...]) -> str | None:
        if self.whole > len(sublayers):
            return f"has {self.whole} of {len(sublayers)} sublayers read all streams; lower whole"
        for sublayer in sublayers[: self.whole]:
            narrow = any(part.norm_in or part.norm_out for part in (sublayer, *sublayer.branches))
            if narrow or not all(branch.mixer.takes_streams and not branch.late for branch in sublayer.branches):
                return (
                    f"has its first {self.whole} sublayers read and write all streams, which takes mixers that do (Engram), by "
                    "themselves: no norm, none late; lower whole"
                )
        return None

    def n_whole(self) -> int:
        return self.whole

    def parts(self, place: Place) -> Mapping[str, Placed]:
        several(self, place, "GatedStreams")
        mixed, added = GatedMixingSpec(gates=StreamGatesSpec(rank=self.rank, norm=self.norm)), AddSpec()
        return {"sublayers": [(added if i < self.whole else mixed, place) for i in range(place.n_sublayers)]}


class GatedMixingSpec(PartSpec):
    """How one sublayer reads and writes the streams."""

    flops_as: ClassVar[str | None] = "streams"

    gates: StreamGatesSpec

    def parts(self, place: Place) -> Mapping[str, Placed]:
        shares = LinearSpec(d_out=Width(place.n_streams), axes=("streams", "d_model"))
        return {
            "read": (self.gates, place),
            "write": (shares, place.at(place.n_streams * place.d_model)),
        }


class GatedMixing(Part[GatedMixingSpec]):
    read: StreamGates
    write: Linear

    def step(self, state: Tensor, branches: Branches, context: ForwardContext) -> tuple[Tensor, list[Notes]]:
        """The streams side by side [batch, token, n · d_model] after branches have read and written, and their notes."""
        x, normed = self.read(state)
        share = 2 * (self.write(normed) / self.place.n_streams).sigmoid()
        y, notes = branches(x, context)
        return state + (share[..., None] * y[..., None, :]).flatten(-2), notes


class GatedResidual(EachSublayer[GatedResidualSpec]):
    """Its parts are `GatedMixing`."""
