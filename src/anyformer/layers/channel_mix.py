"""RWKV's channel mixing: a feed-forward that reads the token before, too. Peng et al. 2023, arXiv:2305.13048, section 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from anyformer.layers.activation import ActivationSpec, ReLU2, Sigmoid
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps
from anyformer.layers.token_shift import TokenShift, TokenShiftSpec
from anyformer.spec import Place, Placed, Share, Width


class ChannelMixSpec(RecurrentSpec):
    """gate(W_r x') ⊙ W_v activation(W_k x″), x' and x″ token shifts of the input; its state is the last token."""

    counted_as: ClassVar[str | None] = "feed-forward"
    flops_as: ClassVar[str | None] = "feed-forward"

    d_ff: Width
    activation: ActivationSpec = ReLU2()
    gate: ActivationSpec = Sigmoid()
    # how far through its stack the layer stands, from which shifts start; None: as the stack has it
    depth: Share | None = None

    def within(self, layer: int, n_layers: int) -> ChannelMixSpec:
        return self if self.depth is not None else self.but(depth=layer / n_layers)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        shift = TokenShiftSpec(power=1 - (self.depth or 0.0)), place
        return {
            "shift_key": shift,
            "shift_receptance": shift,
            "up": (LinearSpec(d_out=self.d_ff, role="inner", axes=("d_ff", "d_model")), place),
            "receptance": (LinearSpec(axes=("d_model", "d_model")), place),
            "down": (LinearSpec(role="output", axes=("d_model", "d_ff")), place.at(self.d_ff)),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"last": (1, place.d_model)}

    def narrowed(self, place: Place, ranks: int) -> ChannelMixSpec:
        """Its share of the features; each rank gates what it writes, by the whole gate."""
        return self.but(d_ff=self.divided("d_ff", ranks))


class ChannelMix(Recurrent[ChannelMixSpec]):
    shift_key: TokenShift
    shift_receptance: TokenShift
    up: Linear
    receptance: Linear
    down: Linear

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the last token) of x of that shape."""
        before, last = steps.preceding(x, (state or {}).get("last"))
        change = x - before
        hidden = self.spec.activation(self.up(self.shift_key(before, change)))
        gate = self.spec.gate(self.receptance(self.shift_receptance(before, change)))
        return gate * self.down(hidden), {"last": last}
