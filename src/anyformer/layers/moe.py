"""Mixtures of experts: a token goes through the few networks that a router chooses. Shazeer et al. 2017, arXiv:1701.06538.

An expert may have a capacity: tokens beyond it pass it by (Lepikhin et al. 2020, arXiv:2006.16668; Fedus et al. 2021,
arXiv:2101.03961).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.experts import Experts, ExpertsSpec
from anyformer.layers.feed_forward import ExpertSpec
from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.layers.router import Router, RouterSpec, noted
from anyformer.spec import (
    Caveat,
    Cost,
    Count,
    MapSpec,
    MixerSpec,
    Place,
    Placed,
    Positive,
    Sizes,
    Spec,
    Weight,
    Whole,
    Width,
    Workload,
)


class CapacitySpec(Spec, abstract=True):
    """Places that an expert has for the tokens of one sequence."""

    def places(self, n_tokens: int, n_experts: int, top_k: int) -> int:
        """How many tokens of a sequence of `n_tokens` an expert takes."""
        raise TypeError(f"{self.kind} does not say how many places there are")


class CapacityFactor(CapacitySpec):
    """factor · top_k · tokens / experts, rounded up: 1 is exactly enough for an even load (Switch, section 2.2)."""

    factor: Positive

    def places(self, n_tokens: int, n_experts: int, top_k: int) -> int:
        return math.ceil(self.factor * top_k * n_tokens / n_experts)


class FixedCapacity(CapacitySpec):
    """A number of tokens, whatever the length (the released Switch models)."""

    tokens: Whole

    def places(self, n_tokens: int, n_experts: int, top_k: int) -> int:
        return self.tokens

    def resized(self, to: Sizes) -> FixedCapacity:
        """A number of tokens, as a window's is: it stays small enough to matter."""
        return self.but(tokens=to.window(self.tokens))


class MoESpec(MixerSpec):
    """Σ over the chosen experts of weight · expert(x), plus what an expert for all tokens makes of x.

    Identities that are chosen add weight · x, empty ones nothing.
    """

    counted_as: ClassVar[str | None] = "experts"

    router: RouterSpec
    expert: MixerSpec  # an ExpertSpec: what each expert is; their tensors are stacked
    norm: MapSpec | None = None  # of what they read; the router and a shared expert read what comes in (Gemma 4)
    shared_expert: MixerSpec | None = None  # for all tokens; several of one width are one that is as wide as all
    shared_gate: bool = False  # the shared expert's result is multiplied by σ(w·x) (Qwen-MoE)
    capacity: CapacitySpec | None = None  # None: every choice is served
    # what experts read and write, mapped there and back by linear maps of all; None: d_model
    latent: Width | None = None
    bias: bool = False  # of the sum (JetMoE)
    weighs: Literal["output", "input"] = "output"  # what of an expert is multiplied by its weight (Llama 4: the input)

    def __post_init__(self) -> None:
        if not isinstance(self.expert, ExpertSpec):
            remedy = (
                "cannot be one of many experts; take a feed-forward, or a mixer whose specification is an ExpertSpec"
            )
            raise self.refusal("expert", remedy)
        if self.shared_gate and self.shared_expert is None:
            raise self.refusal("shared_gate", "has nothing to gate; give a shared_expert")

    def lends(self) -> Mapping[str, str]:
        return self.router.named(own=True)

    def borrows(self) -> Mapping[str, str]:
        return self.router.named(own=False)

    def unfit(self, what: str, lender: MixerSpec, place: Place) -> str | None:
        own, its = self.router.stream, isinstance(lender, MoESpec) and lender.router.stream
        return None if own and its and own.width == its.width else "that is of another width"

    def together(self) -> str | None:
        return "has a capacity, which counts the tokens of a row" if self.capacity is not None else None

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"bias": Weight((place.shape[-1],), ("d_model",), "bias", fill=0.0) if self.bias else None}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        router = self.router
        experts = ExpertsSpec(n_experts=router.n_experts, n_used=router.n_used, expert=self.expert)
        scored = router.n_shared and experts.but(n_experts=Count(router.n_shared), n_used=None)
        return {
            "router": (router, place),
            "norm": self.norm and (self.norm, place),
            "latent_in": (LinearSpec(d_out=self.latent), place) if self.latent else None,
            "experts": (experts, self._within(place)),
            "latent_out": (LinearSpec(role="output"), place.at(self.latent)) if self.latent else None,
            "shared_expert": self.shared_expert and (self.shared_expert, place),
            "scored": (scored, self._within(place)) if scored else None,
            "shared_gate": (LinearSpec(d_out=Width(1), axes=("gate", "d_model")), place) if self.shared_gate else None,
        }

    def _within(self, place: Place) -> Place:
        """The place of the experts."""
        return place if self.latent is None else dataclasses.replace(place, d_model=self.latent, shape=(self.latent,))

    def narrowed(self, place: Place, ranks: int) -> MoESpec | None:
        """Every expert's share of its features: the router chooses alike on all ranks, and all read the maps of a latent."""
        expert, shared = self.expert.narrowed(self._within(place), ranks), self.shared_expert
        narrow = shared and shared.narrowed(place, ranks)
        if expert is None or (shared is not None and narrow is None):
            return None
        return self.but(expert=expert, shared_expert=narrow)

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The router's, the shared expert's and as many experts' as a token chooses; drops are not foreseen."""
        found, shared = self.router.cost(place, workload), Cost()
        found += self._cost_of(self.router.n_used, place, workload).named("experts")
        if self.latent:
            found += Cost({"latent": 4 * place.shape[-1] * self.latent * workload.tokens})
        if self.shared_expert:
            shared += self.shared_expert.cost(place, workload)
        if self.router.n_shared:
            shared += self._cost_of(self.router.n_shared, place, workload)
        if self.shared_gate:
            shared += Cost({"linear": 2 * place.shape[-1] * workload.tokens})
        return found + shared.named("shared expert")

    def _cost_of(self, n: int, place: Place, workload: Workload) -> Cost:
        """That of n experts."""
        return self.expert.cost(self._within(place), dataclasses.replace(workload, batch=workload.batch * n))

    def resized(self, to: Sizes) -> MoESpec:
        """A shared expert that is several in one stays as many of the others' width."""
        small = super().resized(to)
        one, several, expert = (getattr(part, "d_ff", 0) for part in (self.expert, self.shared_expert, small.expert))
        if small.shared_expert is None or not one or not several or several % one:
            return small
        return small.but(shared_expert=small.shared_expert.but(d_ff=Width(several // one * expert)))

    def caveats(self) -> tuple[Caveat, ...]:
        rounding = Caveat("bits", "how many tokens share an expert sets how its products are rounded")
        if self.capacity is None:
            return (rounding,)
        return (
            rounding,
            Caveat("cache", "tokens compete for an expert's places, so a chunk's size changes who gets one"),
            Caveat("packing", "the documents of a row compete for an expert's places"),
            Caveat("padding", "the length of a row, padding included, may set how many places there are"),
        )


class MoE(Part[MoESpec]):
    """Notes router_logits [batch, token, choices], chosen [batch, token, top_k] and real [batch, token]: no padding.

    With a capacity also served [batch, token, top_k].
    """

    router: Router
    norm: nn.Module
    latent_in: nn.Module | None
    experts: Experts
    latent_out: nn.Module | None
    shared_expert: nn.Module | None
    scored: Experts | None  # those for all tokens that the router weighs
    shared_gate: nn.Module | None
    bias: Tensor | None
    share = 1.0  # of the bias and of what identities return, where several processes each write a part of the sum

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape, and the notes."""
        spec, rows = self.spec, x.flatten(0, 1)
        routing = self.router(rows, context)
        weights, chosen = routing.weights, routing.chosen
        notes = noted(routing, context, (x.shape[0], x.shape[1]))
        if spec.capacity is not None:
            places = spec.capacity.places(x.shape[1], spec.router.n_choices, spec.router.top_k)
            served = admitted(notes["chosen"], spec.router.n_choices, places, notes["real"])
            served = notes["served"] = served | (notes["chosen"] >= spec.router.n_experts)  # identities take all
            weights, chosen = weights * served.flatten(0, 1), chosen.masked_fill(~served.flatten(0, 1), -1)
        rows = self.norm(rows)
        returned = None
        if spec.router.n_identity:
            returned, weights, chosen = self._identities(rows, weights, chosen)
        route = partial(_routed, weighs=spec.weighs, context=context)
        inner = rows if self.latent_in is None else self.latent_in(rows)
        y = route(self.experts, inner, chosen, weights)
        if self.scored is not None and routing.shared is not None:
            every = torch.arange(spec.router.n_shared, device=x.device).expand(len(rows), -1)
            y = y + route(self.scored, inner, every, routing.shared)
        y = y if self.latent_out is None else self.latent_out(y)
        y = (y if returned is None else y + returned).view_as(x)
        y = y if self.bias is None else y + (self.bias * self.share).to(y.dtype)
        if self.shared_expert is not None:
            shared, _ = self.shared_expert(x, context, store)
            y = y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        return y, notes

    def _identities(self, x: Tensor, weights: Tensor, chosen: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """What a token's identities return of x [token, d_model], and the weights and choices that are left for experts."""
        experts = chosen < self.spec.router.n_experts
        share = (weights * ~experts).sum(-1, keepdim=True) * self.share
        returned = None if self.spec.router.empty else x * share.to(x.dtype)
        return returned, weights * experts, chosen.masked_fill(~experts, -1)


def _routed(
    experts: Experts, x: Tensor, chosen: Tensor, weights: Tensor, weighs: str, context: ForwardContext
) -> Tensor:
    """The sum over a token's experts of weight · expert(x), or of expert(weight · x), [token, d_model] of x of that shape."""
    if weighs == "output":
        return experts(x, chosen, weights, context)
    each, one = (x[:, None] * weights[..., None].to(x.dtype)).flatten(0, 1), chosen.flatten()[:, None]
    return experts(each, one, (one >= 0).to(weights.dtype), context).unflatten(0, chosen.shape).sum(1)


def admitted(chosen: Tensor, n_experts: int, places: int, real: Tensor) -> Tensor:
    """Which choices [batch, token, top_k] get a place: first come first served, so that nothing depends on later tokens.

    Of one token the better choice comes first. Padding (`real` [batch, token] is False) takes no place.
    """
    wanted = nn.functional.one_hot(chosen, n_experts) * real[..., None, None]
    queue = wanted.flatten(1, 2).cumsum(1).view_as(wanted)
    return queue.gather(-1, chosen[..., None])[..., 0] <= places
