"""Feed-forward networks: plain (Vaswani et al. 2017, section 3.3) and gated (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.activation import Activation, ActivationSpec
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.execution import exact_dtype
from anyformer.layers.grouped_linear import in_groups
from anyformer.layers.linear import Linear, LinearSpec, Together, low_rank, named, side_by_side
from anyformer.layers.memory_efficient import MemoryEfficientDown, operands, saves_activations
from anyformer.layers.part import Part, is_plain
from anyformer.spec import Count, MapSpec, MixerSpec, Place, Placed, Positive, TrueShare, Width


class ExpertSpec(MixerSpec, abstract=True):
    """A mixer of linear maps of x, a function of what they give, and a linear map out, in the order of its parts.

    A mixture of experts can hold many of them.
    """

    counted_as: ClassVar[str | None] = "feed-forward"
    flops_as: ClassVar[str | None] = "feed-forward"

    def together(self) -> str | None:
        return None

    def inner(self, *hidden: Tensor, module: Any) -> Tensor:
        """What goes into the last map, given what comes out of the first ones; `module` has the parts between by name."""
        raise TypeError(f"{self.kind} does not say what is between its maps")


class FeedForwardSpec(ExpertSpec):
    """down(norm(activation(up(x))))."""

    d_ff: Width
    activation: ActivationSpec
    norm: MapSpec | None = None  # of what goes into the last map (BitNet)
    bias_in: bool = True
    bias_out: bool = True
    groups: Count = Count(1)  # of features, of each map, that do not meet the others (ConvBERT)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        up = LinearSpec(d_out=self.d_ff, bias=self.bias_in, role="inner", axes=("d_ff", "d_model"))
        return {
            "up": (in_groups(up, self.groups), place),
            "activation": (self.activation, place),
            "norm": self.norm and (self.norm, place.at(self.d_ff)),
            "down": (in_groups(_down(self.bias_out), self.groups), place.at(self.d_ff)),
        }

    def narrowed(self, place: Place, ranks: int) -> FeedForwardSpec | None:
        """Its share of the features; None where all are normed together, or come in groups."""
        alone = self.norm is None and self.groups == 1
        return self.but(d_ff=self.divided("d_ff", ranks)) if alone else None

    def inner(self, *hidden: Tensor, module: Any) -> Tensor:
        (up,) = hidden
        return module.norm(module.activation(up))


class FeedForward(Part[FeedForwardSpec]):
    up: nn.Module
    activation: nn.Module
    norm: nn.Module
    down: Any

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; no notes."""
        return _down_of(self, context, self.up(x)), {}


class GatedFeedForwardSpec(ExpertSpec):
    """down(norm(activation(gate(x)) · (up(x) + up_offset))), gate and up clamped where a limit is (gpt-oss, Phi-3 small)."""

    d_ff: Width
    activation: ActivationSpec
    norm: MapSpec | None = None  # of what goes into the last map (BitNet)
    bias_in: bool = False
    bias_out: bool = False
    limit: Positive | None = None  # gate ≤ limit, -limit ≤ up ≤ limit
    clamps: Literal["gate", "activated"] = "gate"  # "activated": activation(gate) ≤ limit (Step 3.5)
    up_offset: float = 0.0
    sparsity: TrueShare | None = None  # of the gate's features, what goes into the activation as 0 (Gemma 3n)
    common: str | None = None  # the maps are those of all feed-forwards that have this name (Zamba)
    adapter: Width | None = None  # the rank of what is added to gate and up, of its own (Zamba 2)

    def __post_init__(self) -> None:
        self.require("clamps", self.clamps == "gate" or self.limit is not None, "is of a limit; give one")

    def parts(self, place: Place) -> Mapping[str, Placed]:
        into = LinearSpec(d_out=self.d_ff, bias=self.bias_in, role="inner", axes=("d_ff", "d_model"))
        return {
            "gate": (named(into, self.common, "gate"), place),
            "up": (named(into, self.common, "up"), place),
            "adapter": (low_rank(self.adapter, 2 * self.d_ff), place) if self.adapter else None,
            "activation": (self.activation, place),
            "norm": self.norm and (self.norm, place.at(self.d_ff)),
            "down": (named(_down(self.bias_out), self.common, "down"), place.at(self.d_ff)),
        }

    def narrowed(self, place: Place, ranks: int) -> GatedFeedForwardSpec | None:
        """Its share of the features; None where all are normed, or the largest of all are found, together."""
        alone = self.norm is None and self.sparsity is None and self.adapter is None
        return self.but(d_ff=self.divided("d_ff", ranks)) if alone else None

    def inner(self, *hidden: Tensor, module: Any) -> Tensor:
        gate, up = hidden
        limit = self.limit
        if limit is not None:
            gate, up = gate.clamp(max=limit) if self.clamps == "gate" else gate, up.clamp(-limit, limit)
        gate = module.activation(gate if self.sparsity is None else largest(gate, self.sparsity))
        if limit is not None and self.clamps == "activated":
            gate = gate.clamp(max=limit)
        return module.norm(gate * (up + self.up_offset if self.up_offset else up))


class GatedFeedForward(Part[GatedFeedForwardSpec]):
    gate: Linear
    up: Linear
    activation: nn.Module
    norm: nn.Module
    down: Any
    adapter: nn.Module | None
    together: Together | None = None  # gate and up as one product, for decoding

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; no notes."""
        gate, up = side_by_side(x, (self.gate, self.up), self.together)
        if self.adapter is not None:
            gate, up = (a + b for a, b in zip((gate, up), self.adapter(x).chunk(2, -1), strict=True))
        return _down_of(self, context, gate, up), {}


def between(expert: ExpertSpec, module: Any, context: ForwardContext) -> Callable[..., Tensor]:
    """What makes the last map's input of what the first ones give: `inner`, and dropout. It holds no pass."""
    inner, rate = partial(expert.inner, module=module), context.rates.activation
    return (lambda *hidden: F.dropout(inner(*hidden), rate)) if rate else inner


def _down_of(module: Any, context: ForwardContext, *hidden: Tensor) -> Tensor:
    """The last map of what is between, which is made again in the backward pass where it learns and draws nothing.

    Of a layer that is made again as a whole the last map is not: nobody needs its result. Nor is what is all that stays.
    """
    made = between(module.spec, module, context)
    stays = len(hidden) == 1 and isinstance(module.activation, Activation) and module.activation.spec.by_result
    if (
        saves_activations()
        and not (context.within or stays)
        and not (context.rates.activation or _learns(module))
        and is_plain(module.down, Linear)
    ):
        return MemoryEfficientDown.apply(made, *operands(hidden[0], module.down.weight, module.down.bias), *hidden)
    return module.down(made(*hidden))


def _learns(module: Any) -> bool:
    """Whether what is between the maps has weights, whose gradients are not made again."""
    return module.spec.norm is not None or any(True for _ in module.activation.parameters())


def largest(x: Tensor, share: float) -> Tensor:
    """How far the features of x […, width] lie above mean + deviation · Φ⁻¹(share), 0 for those below: about that share.

    Found without sorting, as if they were normal: "statistical top-k", You et al. 2025, arXiv:2506.06644, section 3.
    """
    around = x - x.mean(-1, keepdim=True)
    deviation = torch.linalg.vector_norm(around, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
    quantile = torch.special.ndtri(torch.full((), share, dtype=exact_dtype(x), device=x.device))
    return F.relu(around - deviation * quantile)


def _down(bias: bool) -> LinearSpec:
    return LinearSpec(bias=bias, role="output", axes=("d_model", "d_ff"))
