"""RWKV's time mixing: gated means of values that decay. Peng et al. 2023, arXiv:2305.13048, section 3.1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anyformer.layers.activation import ActivationSpec, Sigmoid
from anyformer.layers.execution import as_given, exact_dtype
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps
from anyformer.layers.token_shift import TokenShift, TokenShiftSpec
from anyformer.layers.wkv_scan import wkv
from anyformer.spec import Place, Placed, Share, Weight, Width


class WKVSpec(RecurrentSpec):
    """W_o (gate(r) ⊙ wkv), (r, k, v) = maps of token shifts of the input, each of its own.

    wkv_t = (Σ_{i<t} e^(k_i - (t-1-i) e^decay) v_i + e^(k_t + bonus) v_t) / the same without v. Its state is the last token, both
    sums, and the largest weight in them, of which all are shares.
    """

    width: Width | None = None  # of r, k and v; None: d_model
    gate: ActivationSpec = Sigmoid()
    # where in its stack the layer stands, from which its weights start: layer / n_layers, for the powers of shifts, and
    # layer / (n_layers - 1), for decays and the values' offset; None: as the stack has it
    depth: Share | None = None
    depth_to_last: Share | None = None

    def within(self, layer: int, n_layers: int) -> WKVSpec:
        depth = layer / n_layers if self.depth is None else self.depth
        to_last = layer / max(n_layers - 1, 1) if self.depth_to_last is None else self.depth_to_last
        return self.but(depth=depth, depth_to_last=to_last)

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        """Start as appendix E has it: channels that forget soon, and ones that hardly do."""
        n, depth = self._width(place), self.depth_to_last or 0.0
        decays = tuple(-5 + 8 * (i / max(n - 1, 1)) ** (0.7 + 1.3 * depth) for i in range(n))
        bonuses = tuple(math.log(0.3) + 0.5 * ((i + 1) % 3 - 1) for i in range(n))
        return {
            "decay": Weight((n,), ("channels",), "bias", fill=decays),
            "bonus": Weight((n,), ("channels",), "bias", fill=bonuses),
        }

    def parts(self, place: Place) -> Mapping[str, Placed]:
        depth, width = self.depth or 0.0, Width(self._width(place))
        into = LinearSpec(d_out=width, axes=("channels", "d_model"))
        return {
            "shift_key": (TokenShiftSpec(power=1 - depth), place),
            "shift_value": (TokenShiftSpec(power=1 - depth, offset=0.3 * (self.depth_to_last or 0.0)), place),
            "shift_receptance": (TokenShiftSpec(power=(1 - depth) / 2), place),
            "key": (into, place),
            "value": (into.but(role="inner"), place),
            "receptance": (into, place),
            "out": (LinearSpec(role="output", axes=("d_model", "channels")), place.at(width)),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        n = self._width(place)
        return {"last": (1, place.d_model), "sums": (2, n), "largest": (n,)}

    def narrowed(self, place: Place, ranks: int) -> WKVSpec:
        """Its share of the channels."""
        return self.but(width=Width(self.but(width=self._width(place)).divided("width", ranks)))

    def _width(self, place: Place) -> int:
        return self.width or place.d_model


class WKV(Recurrent[WKVSpec]):
    shift_key: TokenShift
    shift_value: TokenShift
    shift_receptance: TokenShift
    key: Linear
    value: Linear
    receptance: Linear
    out: Linear
    decay: Tensor
    bonus: Tensor

    def run(self, x: Tensor, steps: Steps, state: Mapping[str, Tensor] | None) -> tuple[Tensor, Mapping[str, Any]]:
        """(y [batch, step, d_model], the state) of x of that shape."""
        held = state or {}
        before, last = steps.preceding(x, held.get("last"))
        change = x - before
        k, v = self.key(self.shift_key(before, change)), self.value(self.shift_value(before, change))
        r = self.receptance(self.shift_receptance(before, change))
        with as_given(x):  # in float32 at least, since a state adds up its rounding
            dtype = exact_dtype(x)
            k, v, rate, bonus = (each.to(dtype) for each in (k, v, self.decay, self.bonus))
            known = (held["sums"], held["largest"]) if held else None
            y, (sums, largest) = wkv(k, v, rate.exp(), bonus, steps.begins, steps.real, known)
        return self.out(self.spec.gate(r) * y.to(r.dtype)), {"last": last, "sums": sums, "largest": largest}
