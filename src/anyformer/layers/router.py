"""Routers: which experts a token goes to, and with what weights. Shazeer et al. 2017, arXiv:1701.06538."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.layers.activation import soft_capped
from anyformer.layers.context import Decided, ForwardContext
from anyformer.layers.execution import as_given, exact
from anyformer.layers.part import Part
from anyformer.layers.router_stream import STREAM, RouterStream, RouterStreamSpec
from anyformer.spec import (
    Cost,
    Count,
    Few,
    MapSpec,
    PartSpec,
    Place,
    Placed,
    Positive,
    ScaleSpec,
    Sizes,
    Vocab,
    Weight,
    Workload,
)


class RouterSpec(PartSpec):
    """The `top_k` best of `n_experts` scores; the scores chosen, or what `score` makes of them, are the weights.

    softmax: of all scores (Switch, Mixtral, DeepSeek-V2); softmax-of-chosen: of those chosen (gpt-oss);
    sigmoid: each by itself (DeepSeek-V3, arXiv:2412.19437, section 2.1.2); sqrt-softplus: likewise, and without an upper
    bound (DeepSeek-V4); sparsemixer: expert after expert, each time the softmax of the scores that are near the best one left;
    in training each is drawn from that softmax, and the gradient is an estimate of what other draws would have given
    (Phi-3.5-MoE; Liu et al. 2024, arXiv:2409.12136).
    """

    observed_as: ClassVar[str | None] = "router"
    flops_as: ClassVar[str | None] = "router"

    n_experts: Count
    top_k: Few
    # more that can be chosen and return what they read (LongCat-Flash, arXiv:2509.01322, section 2.1)
    n_identity: int = 0
    empty: bool = False  # those return nothing (ZAYA1's skip)
    n_shared: int = 0  # more that every token goes through, scored and weighed beside those chosen (Inkling)
    score: Literal["softmax", "softmax-of-chosen", "sigmoid", "sqrt-softplus", "sparsemixer"] = "softmax"
    # rows of a table, never trained, of the experts that each token id goes to, whatever the scores, which still weigh them
    # (Roller et al. 2021, arXiv:2106.04426; DeepSeek-V4); ids beyond it go where the first goes. None: to the best scores
    hashed: Vocab | None = None
    stream: RouterStreamSpec | None = None  # what it reads of x, and of the routers before (ZAYA1)
    inner: MapSpec | None = None  # of that, before the map to scores: an MLP, say
    norm: MapSpec | None = None  # of what it reads
    scale: ScaleSpec | None = None  # of the logits, by d_model
    bias: bool = False  # of the logits
    softcap: Positive | None = None  # cap · tanh(logits / cap) (Laguna)
    correction: bool = False  # a bias of the choice alone, moved by the load and never by a gradient (DeepSeek-V3)
    corrects: Literal["scores", "logits"] = "scores"  # what it is added to (Kolibri 1: the logits)
    n_groups: Few = 1
    top_groups: Few = 1  # only the experts of the best groups can be chosen (DeepSeek-V2, V3)
    group_score: Literal["max", "top2-sum"] = "max"  # of a group: its best score, or the sum of its best two
    renormalise: bool = False  # the weights are divided by their sum
    eps: Positive = 1e-20  # added to that sum (as in DeepSeek-V3; LFM2: 1e-6)
    factor: Positive = 1.0  # of the weights, last
    gains: bool = False  # a learned factor of each expert's weight, last (Gemma 4)
    tolerance: Positive = 0.01  # sparsemixer: scores below the best by more than twice this share of it are left out

    def __post_init__(self) -> None:
        choices = f"n_experts = {self.n_experts}" + (f" and n_identity = {self.n_identity}" if self.n_identity else "")
        if self.n_choices % self.n_groups:
            raise self.refusal("n_groups", f"must divide {choices}")
        if self.empty and not self.n_identity:
            raise self.refusal("empty", "is of identities, and there are none; give n_identity or leave it out")
        if self.top_groups > self.n_groups:
            raise self.refusal("top_groups", f"must be from 1 to n_groups = {self.n_groups}")
        size = self.n_choices // self.n_groups
        self.require("top_k", self.top_k <= self.n_choices, f"must be from 1 to {choices}")
        if self.top_k > self.top_groups * size:
            reachable = f"{self.top_groups * size} experts of top_groups = {self.top_groups} groups of {size}"
            raise self.refusal("top_k", f"is more than the {reachable}; lower it or raise top_groups")
        if self.group_score == "top2-sum" and size < 2:
            raise self.refusal("group_score", "needs groups of at least 2 experts; lower n_groups")
        if self.score == "sparsemixer" and (self.correction or self.n_groups > 1 or self.renormalise):
            raise self.refusal("score", "takes no correction, no groups and no renormalise; leave them out")
        if self.n_shared and (self.score == "sparsemixer" or self.gains):
            raise self.refusal("n_shared", "takes no sparsemixer and no gains; leave them out")
        if self.hashed and (self.correction or self.n_groups > 1 or self.score == "sparsemixer"):
            raise self.refusal("hashed", "is a choice already: leave correction, groups and sparsemixer out")
        if self.corrects == "logits" and not self.correction:
            raise self.refusal("corrects", "changes nothing without a correction; leave it out")
        if self.score == "softmax-of-chosen" and self.renormalise:
            raise self.refusal("renormalise", "changes nothing where the weights are a softmax; leave it out")

    @property
    def draws(self) -> bool:
        """Whether the choice is random in training."""
        return self.score == "sparsemixer"

    @property
    def n_choices(self) -> int:
        """The experts and the identities."""
        return self.n_experts + self.n_identity

    @property
    def n_used(self) -> int:
        """The experts that a token goes through; beside identities those of an even load, rounded."""
        return max(1, round(self.top_k * self.n_experts / self.n_choices))

    def parts(self, place: Place) -> Mapping[str, Placed]:
        streamed, inner = self._inside(place)
        return {
            "stream": self.stream and (self.stream, place),
            "inner": self.inner and (self.inner, streamed),
            "norm": self.norm and (self.norm, inner),
        }

    def _inside(self, place: Place) -> tuple[Place, Place]:
        """Where what is inside stands: (behind the stream, behind what maps that)."""
        streamed = place if self.stream is None else place.at(self.stream.width)
        return streamed, streamed if self.inner is None else place.at(self.inner.width_out(streamed))

    def named(self, *, own: bool) -> Mapping[str, str]:
        """What it lends, or what it borrows."""
        if self.stream is None or not (own or self.stream.reads == "layer"):
            return {}
        return {STREAM: self.stream.name}

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n, width = self.n_choices, self._inside(place)[1].shape[-1]
        scored, each = (n + self.n_shared,), ("experts",)
        return {
            "weight": Weight((*scored, width), ("experts", "d_model")),
            "bias": Weight(scored, each, "bias", fill=0.0) if self.bias else None,
            "correction": Weight((n,), each, "bias", fill=0.0, trainable=False) if self.correction else None,
            "table": Weight((self.hashed, self.top_k), ("vocab", "choices"), "table", trainable=False, below=n)
            if self.hashed
            else None,
            "gain": Weight((n,), each, "gain", fill=1.0) if self.gains else None,
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        scores = 2 * (self.n_choices + self.n_shared) * self._inside(place)[1].shape[-1] * workload.tokens
        return super().cost(place, workload) + Cost({"router": scores})

    def resized(self, to: Sizes) -> Self:
        """Experts and groups follow the rule for counts; how many are chosen stays a share of them that is still a choice.

        So do identities.
        """
        experts = to.count(self.n_experts)
        if experts == self.n_experts:
            return to.fields(self)
        identities = _share(self.n_identity, self.n_experts, experts) if self.n_identity else 0
        n = experts + identities
        groups = to.count(self.n_groups)
        groups = groups if n % groups == 0 and n // groups > 1 else 1
        top_groups = _share(self.top_groups, self.n_groups, groups)
        # with fewer, the best groups would have all of the best experts
        least = top_groups + 1 if self.top_k > self.top_groups > 1 else 1
        top_k = min(max(least, _share(self.top_k, self.n_choices, n)), top_groups * n // groups)
        score = self.group_score if n // groups > 1 else "max"
        factor = self.factor
        if factor != 1 and self.score == "softmax" and not self.renormalise:
            # Weights are shares of all choices, about 1 / n_choices each; their sum, times the factor, stays the same.
            factor = round(factor * (self.top_k / self.n_choices) / (top_k / n), 6)
        return to.fields(
            self,
            n_experts=experts,
            n_identity=identities,
            top_k=top_k,
            n_groups=groups,
            top_groups=top_groups,
            group_score=score,
            factor=factor,
        )


def _share(top: int, of: int, n: int) -> int:
    """How many to choose of n in proportion: 1 stays 1, several stay several, all stay all, some stay some."""
    if top == of:
        return n
    return min(max(min(top, 2), round(top * n / of)), max(1, n - 1))


class Routing(NamedTuple):
    """What a router decided, for each token [token, …]."""

    weights: Tensor  # [token, top_k]
    chosen: Tensor  # [token, top_k], numbers of experts; those of identities come after
    logits: Tensor  # [token, experts], float32 at least
    shared: Tensor | None = None  # [token, n_shared], the weights of experts for all tokens


def noted(routing: Routing, context: ForwardContext, shape: tuple[int, int]) -> dict[str, Tensor]:
    """What training reads of it, of [batch, token]: router_logits [batch, token, choices], chosen, and which tokens are real."""
    document = context.tokens.document
    return {
        "router_logits": routing.logits.unflatten(0, shape),
        "chosen": routing.chosen.unflatten(0, shape),
        "real": routing.logits.new_ones(shape, dtype=torch.bool) if document is None else document.expand(shape) > 0,
    }


class Router(Part[RouterSpec]):
    """Computes in float32 at least, whatever the model's precision: rounding would change who is chosen."""

    weight: Tensor
    bias: Tensor | None
    correction: Tensor | None
    table: Tensor | None
    gain: Tensor | None
    stream: RouterStream | None
    inner: nn.Module | None
    norm: nn.Module

    def forward(self, x: Tensor, context: ForwardContext) -> Routing:
        """Where the tokens x [token, d_model] go."""
        x = x if self.stream is None else self.stream(x, context)
        x = x if self.inner is None else self.inner(x)
        with as_given(x):
            x = self.norm(exact(x))
            if jitter := context.rates.router_jitter:
                x = x * torch.empty_like(x).uniform_(1 - jitter, 1 + jitter)
            logits = F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
            logits = logits if self.spec.scale is None else logits * self.spec.scale.value(self.place.d_model)
            found = self.choose(
                soft_capped(logits, self.spec.softcap),
                self._looked_up(context.ids),
                training=context.dropout is not None,
                decided=context.decided,
            )
            return found if self.gain is None else found._replace(weights=found.weights * self.gain[found.chosen])

    def _looked_up(self, ids: Tensor | None) -> Tensor | None:
        """The experts [token, top_k] of ids [batch, token] in the table; None where there is none."""
        if self.table is None:
            return None
        assert ids is not None
        ids = ids.flatten()
        return self.table[torch.where(ids < len(self.table), ids, 0)]

    def choose(
        self,
        logits: Tensor,
        chosen: Tensor | None = None,
        *,
        training: bool = False,
        decided: Decided = lambda make: make(),
    ) -> Routing:
        """The choice for logits [token, experts and shared ones]; in training some scores draw it from torch's random numbers.

        `chosen` [token, top_k]: a choice that was made without them. `decided`: what a pass has decided, or does now.
        """
        spec = self.spec
        if spec.score == "sparsemixer":
            return Routing(*_sparsemixer(logits, spec.top_k, spec.tolerance, training, decided), logits)
        if spec.score == "softmax":
            scores = logits.softmax(-1)
        elif spec.score == "sqrt-softplus":
            scores = F.softplus(logits).sqrt()
        else:
            scores = logits.sigmoid() if spec.score == "sigmoid" else logits
        of_all = None
        if spec.n_shared:
            sizes = spec.n_choices, spec.n_shared
            (logits, _), (scores, of_all) = logits.split(sizes, -1), scores.split(sizes, -1)
        ranked = logits if spec.corrects == "logits" else scores
        chosen = decided(lambda: self._best(ranked.detach())) if chosen is None else chosen
        weights = scores.gather(-1, chosen)
        weights = weights if of_all is None else torch.cat((weights, of_all), -1)
        if spec.score == "softmax-of-chosen":
            weights = weights.softmax(-1)
        if spec.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + spec.eps)
        weights = weights * spec.factor if spec.factor != 1 else weights
        if of_all is None:
            return Routing(weights, chosen, logits)
        weights, of_all = (each.contiguous() for each in weights.split((spec.top_k, spec.n_shared), -1))
        return Routing(weights, chosen, logits, of_all)

    def _best(self, scores: Tensor) -> Tensor:
        spec = self.spec
        if self.correction is not None:
            scores = scores + self.correction
        if spec.top_groups < spec.n_groups:
            groups = scores.unflatten(-1, (spec.n_groups, -1))
            of_group = groups.amax(-1) if spec.group_score == "max" else groups.topk(2, -1).values.sum(-1)
            best = of_group.topk(spec.top_groups, -1).indices
            open_ = torch.zeros_like(of_group, dtype=torch.bool).scatter_(-1, best, True)
            scores = groups.masked_fill(~open_[..., None], float("-inf")).flatten(-2)
        return scores.topk(spec.top_k, -1).indices


def _sparsemixer(
    scores: Tensor, top_k: int, tolerance: float, sampled: bool, decided: Decided
) -> tuple[Tensor, Tensor]:
    """(weights, chosen); the weights are of several softmaxes and need not sum to 1."""
    weights, chosen, left = [], [], scores
    for _ in range(top_k):
        best, index = left.detach().max(-1, keepdim=True)
        index = decided(lambda index=index: index)
        size = scores.detach().abs().maximum(best)
        far = (best - scores.detach()) / size > 2 * tolerance
        near = left.masked_fill(far, float("-inf"))
        drawn = _drawn(near.detach(), decided) if sampled else index
        weight = near.softmax(-1).gather(-1, drawn)
        weights.append(_at_a_node(weight, drawn == index) if sampled else weight)
        chosen.append(drawn)
        left = left.scatter(-1, drawn, float("-inf"))
    return torch.cat(weights, -1), torch.cat(chosen, -1)


def _drawn(scores: Tensor, decided: Decided) -> Tensor:
    """An expert for each token [token, 1], drawn from the softmax of scores [token, experts] (Gumbel's way)."""
    noise = torch.empty_like(scores).exponential_().log()
    return decided(lambda: (scores - noise).argmax(-1, keepdim=True))


def _at_a_node(weight: Tensor, best: Tensor) -> Tensor:
    """The weight or a third of it, with the gradient of the whole one.

    What an expert is worth beside none is an integral along its weight, which Heun's third-order method takes from a quarter of
    the slope at the whole and three quarters of that at a third: here one of them is drawn, and its slope stands for both (Liu
    et al. 2023, arXiv:2310.00811; 2024, arXiv:2409.12136, section 2). The best expert is always taken whole.
    """
    whole = best | (torch.rand_like(weight) > 0.75)
    return weight - torch.where(whole, 0.0, 2 / 3 * weight).detach()
