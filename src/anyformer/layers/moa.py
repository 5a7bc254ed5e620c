"""A mixture of attention heads: Zhang et al. 2022, arXiv:2210.05144; as in JetMoE (Shen et al. 2024, arXiv:2404.07413).

Maps to queries and maps of what heads give are experts', a pair each, of which a router chooses few for a token; the keys and
values are one set, which the heads of every expert read.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from anyformer.layers.context import ForwardContext, Notes
from anyformer.layers.experts import StackedLinear, StackedLinearSpec, of_choices
from anyformer.layers.linear import Linear, LinearSpec, side_by_side
from anyformer.layers.projection import Projection, ProjectionSpec
from anyformer.layers.rotary import RotarySpec
from anyformer.layers.router import Router, RouterSpec, Routing, noted
from anyformer.spec import Caveat, Cost, Count, Place, Placed, Sizes, Weight, Width, Workload

ROUTED = "routed"  # what a layer decided of its tokens, from its queries to its output


class MoASpec(ProjectionSpec):
    """Σ over the chosen experts of weight · W_o heads(W_q x), each expert's heads on the same keys and values of the layer."""

    router: RouterSpec
    kv_heads: Count  # heads of keys and values, and of each expert
    head_dim: Width | None = None  # None: d_model / kv_heads
    rotary: RotarySpec | None = None
    bias: bool = False  # of the sum

    def __post_init__(self) -> None:
        if self.router.n_identity or self.router.n_shared:
            others = "identities" if self.router.n_identity else "shared ones"
            raise self.refusal("router", f"has {others}, and such an expert has no heads; leave them out")
        if self.router.stream is not None:
            raise self.refusal(
                "router", "reads the routers of other layers, as those of mixtures do alone; leave stream out"
            )
        if self.head_dim is not None and self.rotary is not None:
            self.rotary.dims(self.head_dim)

    @property
    def n_heads(self) -> int:
        """Those of all experts that a token goes through."""
        return self.router.top_k * self.kv_heads

    def sizes(self, place: Place) -> tuple[int, int, int]:
        if self.head_dim is None and place.d_model % self.kv_heads:
            raise self.refusal("kv_heads", f"does not divide d_model = {place.d_model}; change one or set head_dim")
        head_dim = self.head_dim or place.d_model // self.kv_heads
        if self.rotary is not None:
            self.rotary.dims(head_dim)
        return self.n_heads, head_dim, head_dim

    def rotation(self, place: Place) -> tuple[RotarySpec, int] | None:
        return self.rotary and (self.rotary, self.sizes(place)[1])

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"bias": Weight((place.d_model,), ("d_model",), "bias", fill=0.0) if self.bias else None}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        router, width = self.router, Width(self.kv_heads * self.sizes(place)[1])

        def stacked(linear: LinearSpec) -> StackedLinearSpec:
            return StackedLinearSpec(linear=linear, n_experts=router.n_experts, n_used=router.n_used)

        into, own = LinearSpec(d_out=width, axes=("heads", "d_model")), place.d_source > 0
        return {
            "router": (router, place),
            "q": (stacked(into.but(role="query")), place),
            "k": (into, place.at(place.d_source)) if own else None,
            "v": (into.but(role="inner"), place.at(place.d_source)) if own else None,
            "o": (stacked(LinearSpec(role="output", axes=("d_model", "heads"))), place.at(width)),
            "frequencies": self.frequencies(place),
        }

    @property
    def stored_heads(self) -> int:
        return self.kv_heads

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(("key", "value"), (self.kv_heads, self.sizes(place)[1]))

    def narrowed(self, place: Place, ranks: int) -> MoASpec:
        """Its share of every expert's heads: the router chooses alike on all ranks."""
        return self.but(kv_heads=self.divided("kv_heads", ranks), head_dim=Width(self.sizes(place)[1]))

    def caveats(self) -> tuple[Caveat, ...]:
        return (Caveat("bits", "how many tokens share an expert sets how its products are rounded"),)

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The router's, and the matrix products: as many experts' as a token chooses, keys and values of `workload.memory`."""
        each = 4 * self.kv_heads * self.sizes(place)[1]
        made = workload.query * self.router.n_used * place.d_model + workload.memory * place.d_source
        return self.router.cost(place, workload) + Cost({"projections": workload.batch * made * each})

    def resized(self, to: Sizes) -> MoASpec:
        kv_heads, _, head_dim = to.heads(self.kv_heads, self.kv_heads, self.head_dim)
        rotary = self.rotary and self.rotary.resized(to).fitted(head_dim or to.d_model // kv_heads)
        return to.fields(self, kv_heads=kv_heads, head_dim=head_dim, rotary=rotary)


class MoA(Projection[MoASpec]):
    router: Router
    q: StackedLinear
    k: Linear  # none where another layer's keys are read
    v: Linear
    o: StackedLinear
    bias: Tensor | None
    share = 1.0  # of the bias, where several processes each write a part of the sum

    def query(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Queries [batch, heads, query, head_dim]: side by side those heads of a token's experts that read the same keys."""
        rows = x.flatten(0, 1)
        found = context.memo.found[ROUTED] = self.router(rows, context)
        q = of_choices(rows[:, None], found.chosen, self.q(rows)[0], context)
        q = q.unflatten(-1, (self.spec.kv_heads, -1)).unflatten(0, x.shape[:2]).permute(0, 3, 2, 1, 4).flatten(1, 2)
        return self.turn(q, context)

    def store(self, source: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
        """The keys and values [batch, kv heads, token, head_dim] of [batch, token, d_source]."""
        each = side_by_side(source, (self.k, self.v), None)
        k, v = (x.unflatten(-1, (self.spec.kv_heads, -1)).transpose(1, 2) for x in each)
        return {"key": self.turn(k, context), "value": v}

    def output(self, y: Tensor, context: ForwardContext) -> Tensor:
        """[batch, query, d_model] of y [batch, heads, query, head_dim]."""
        routing: Routing = context.memo.found[ROUTED]
        each = y.unflatten(1, (self.spec.kv_heads, -1)).permute(0, 3, 2, 1, 4)  # [batch, query, choice, head, head_dim]
        rows = each.flatten(0, 1).flatten(2)
        made = of_choices(rows, routing.chosen, self.o(rows)[0], context)
        y = (made * routing.weights[..., None].to(made.dtype)).sum(1).unflatten(0, each.shape[:2])
        return y if self.bias is None else y + (self.bias * self.share).to(y.dtype)

    def notes(self, context: ForwardContext, shape: tuple[int, int]) -> Notes:
        """Those of its router, as a mixture of experts has them."""
        return noted(context.memo.found[ROUTED], context, shape)
