"""What a router reads of the routers before it: exponential depth averaging. Anthony et al. 2025, arXiv:2511.17127 (ZAYA1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from anyformer.layers.context import ForwardContext
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.part import Part
from anyformer.spec import PartSpec, Place, Placed, Weight, Width

STREAM = "router"  # what a layer lends and another borrows


class RouterStreamSpec(PartSpec):
    """r = W x + b, and where it reads a layer's too g ⊙ r of the last before that has a stream of this name."""

    width: Width
    name: str = "depth"
    reads: Literal["self", "layer"] = "self"

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"gain": Weight((self.width,), ("router",), "gain", fill=1.0) if self.reads == "layer" else None}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"down": (LinearSpec(d_out=self.width, bias=True, axes=("router", "d_model")), place)}


class RouterStream(Part[RouterStreamSpec]):
    down: Linear
    gain: Tensor | None

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        """[token, width] of x [token, d_model], of all rows one after the other; later layers find it in the memo by its name."""
        r, found = self.down(x), context.memo.found
        name = f"{STREAM} {self.spec.name}"
        if self.gain is not None:
            r = r + self.gain * found[name].flatten(0, 1)
        found[name] = r.unflatten(0, (-1, context.tokens.n))
        return r
