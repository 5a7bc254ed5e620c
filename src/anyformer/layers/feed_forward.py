"""Feed-forward networks: plain (Vaswani et al. 2017, section 3.3) and gated (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.activation import ActivationSpec
from anyformer.layers.frugal import GatedDown, keeps_less
from anyformer.layers.linear import Linear, LinearSpec, Together
from anyformer.layers.part import Part
from anyformer.layers.tokens import Notes, Now, Store
from anyformer.spec import Cost, Load, MixerSpec, Placed, Site, Width


class FeedForwardSpec(MixerSpec):
    """down(activation(up(x)))."""

    d_ff: Width
    activation: ActivationSpec
    bias_in: bool = True
    bias_out: bool = True

    def parts(self, site: Site) -> Mapping[str, Placed]:
        return {
            "up": (LinearSpec(d_out=self.d_ff, bias=self.bias_in, axes=("d_ff", "d_model")), site),
            "activation": (self.activation, site),
            "down": (_down(self.bias_out), site.at(self.d_ff)),
        }

    def cost(self, site: Site, load: Load) -> Cost:
        return super().cost(site, load).named("feed-forward")


class FeedForward(Part[FeedForwardSpec]):
    up: nn.Module
    activation: nn.Module
    down: nn.Module

    def forward(self, x: Tensor, now: Now, store: Store) -> tuple[Tensor, Notes]:
        hidden = self.activation(self.up(x))
        if now.dropout and now.dropout.activation:
            hidden = F.dropout(hidden, now.dropout.activation)
        return self.down(hidden), {}


class GatedFeedForwardSpec(MixerSpec):
    """down(activation(gate(x)) · (up(x) + up_offset)), gate and up clamped where a limit is given (gpt-oss, Phi-3 small)."""

    d_ff: Width
    activation: ActivationSpec
    bias_in: bool = False
    bias_out: bool = False
    limit: float | None = None  # gate ≤ limit, -limit ≤ up ≤ limit
    up_offset: float = 0.0

    def parts(self, site: Site) -> Mapping[str, Placed]:
        into = LinearSpec(d_out=self.d_ff, bias=self.bias_in, axes=("d_ff", "d_model"))
        return {
            "gate": (into, site),
            "up": (into, site),
            "activation": (self.activation, site),
            "down": (_down(self.bias_out), site.at(self.d_ff)),
        }

    def cost(self, site: Site, load: Load) -> Cost:
        return super().cost(site, load).named("feed-forward")


class GatedFeedForward(Part[GatedFeedForwardSpec]):
    gate: Linear
    up: Linear
    activation: nn.Module
    down: nn.Module

    def __init__(self, spec: GatedFeedForwardSpec, site: Site) -> None:
        super().__init__(spec, site)
        self.together: Together | None = None  # gate and up as one product, for decoding

    def forward(self, x: Tensor, now: Now, store: Store) -> tuple[Tensor, Notes]:
        spec = self.spec
        fused = self.together is not None and self.together.holds()
        gate, up = self.together(x) if self.together and fused else (self.gate(x), self.up(x))
        if spec.limit is not None:
            gate, up = gate.clamp(max=spec.limit), up.clamp(-spec.limit, spec.limit)
        if spec.up_offset:
            up = up + spec.up_offset
        if keeps_less() and not now.dropout and isinstance(self.down, Linear):
            return GatedDown.apply(gate, up, self.down.weight, self.down.bias, self.activation), {}
        hidden = self.activation(gate) * up
        if now.dropout and now.dropout.activation:
            hidden = F.dropout(hidden, now.dropout.activation)
        return self.down(hidden), {}


def _down(bias: bool) -> LinearSpec:
    return LinearSpec(bias=bias, role="output", axes=("d_model", "d_ff"))
