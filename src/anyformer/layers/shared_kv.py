"""One vector a token that is the key and the value of all heads: DeepSeek-AI 2026, the report of DeepSeek-V4, section 2.3.

A value that has turned by its position is turned back by the query's where heads write, so that what they write goes by
distance. Groups of heads write through a narrow vector each.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from anyformer.layers.context import ForwardContext
from anyformer.layers.linear import Linear, LinearSpec, in_proportion
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.projection import Projection, ProjectionSpec
from anyformer.layers.rotary import RotarySpec
from anyformer.spec import Cost, Count, MapSpec, Place, Placed, Sizes, Weight, Width, Workload


class SharedKVSpec(ProjectionSpec):
    """Queries of n_heads, made of a latent where `query_rank` says so, on one key, which is the value too."""

    takes_blocks: ClassVar[bool] = True
    kv_heads: ClassVar[int] = 1

    n_heads: Count
    head_dim: Width
    query_rank: Width | None = None  # of the latent that queries come from; None: they come from the stream
    rotary: RotarySpec | None = None
    norm_latent: MapSpec | None = RMSNormSpec(eps=1e-6)  # of the queries' latent, where there is one
    norm_query: MapSpec | None = None  # of each head
    norm_key: MapSpec | None = RMSNormSpec(eps=1e-6)
    out_groups: Count = Count(1)  # of heads, each with a map to a vector of its own before the map of all
    out_rank: Width | None = None  # of that vector; None: the map of all heads alone

    def __post_init__(self) -> None:
        if self.n_heads % self.out_groups:
            raise self.refusal("out_groups", f"must divide n_heads = {self.n_heads}")
        if self.out_rank is None and self.out_groups > 1:
            raise self.refusal("out_groups", "have no width; give out_rank")
        if self.rotary is not None:
            self.rotary.dims(self.head_dim)

    def sizes(self, place: Place) -> tuple[int, int, int]:
        return self.n_heads, self.head_dim, self.head_dim

    def narrow_width(self, place: Place) -> int:
        return self.query_rank or place.d_model

    def rotation(self, place: Place) -> tuple[RotarySpec, int] | None:
        return self.rotary and (self.rotary, self.head_dim)

    @property
    def written(self) -> int:
        """The width of what the map of all heads reads."""
        return self.n_heads * self.head_dim if self.out_rank is None else self.out_groups * self.out_rank

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        if self.out_rank is None:
            return {"o_down": None}
        width = self.n_heads // self.out_groups * self.head_dim
        return {"o_down": Weight((self.out_groups * self.out_rank, width), ("heads", "head_dim"))}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        narrow, own, head = self.query_rank, place.d_source > 0, place.at(self.head_dim)
        down = LinearSpec(d_out=Width(narrow or 1), axes=("query_rank", "d_model"))
        q = LinearSpec(
            d_out=Width(self.n_heads * self.head_dim),
            role="query",
            axes=("heads", "query_rank" if narrow else "d_model"),
        )
        k = LinearSpec(d_out=self.head_dim, axes=("head_dim", "d_model"))
        return {
            "q_down": (down, place) if narrow else None,
            "norm_latent": self.norm_latent and (self.norm_latent, place.at(narrow)) if narrow else None,
            "q": (q, place.at(narrow or place.d_model)),
            "norm_query": self.norm_query and (self.norm_query, head),
            "k": (k, place.at(place.d_source)) if own else None,
            "norm_key": self.norm_key and (self.norm_key, head) if own else None,
            "o": (LinearSpec(role="output", axes=("d_model", "heads")), place.at(self.written)),
            "frequencies": self.frequencies(place),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"key": (1, self.head_dim)}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The maps, and those of groups of heads."""
        of_groups = 2 * self.n_heads * self.head_dim * (self.out_rank or 0) * workload.tokens
        return super().cost(place, workload) + Cost({"projections": of_groups})

    def resized(self, to: Sizes) -> SharedKVSpec:
        """Heads and head_dim follow their rule, ranks stay in proportion to head_dim, groups to heads."""
        n_heads, _, head_dim = to.heads(self.n_heads, 1, self.head_dim)
        assert head_dim is not None
        like = partial(in_proportion, old=self.head_dim, new=head_dim)
        groups = max(min(2, self.out_groups), self.out_groups * n_heads // self.n_heads)
        return to.fields(
            self,
            n_heads=n_heads,
            head_dim=head_dim,
            query_rank=self.query_rank and like(self.query_rank),
            out_rank=self.out_rank and like(self.out_rank),
            out_groups=next(g for g in range(groups, 0, -1) if n_heads % g == 0),
            rotary=self.rotary and self.rotary.resized(to).fitted(head_dim),
        )


class SharedKV(Projection[SharedKVSpec]):
    q_down: Linear | None
    norm_latent: nn.Module
    q: Linear
    norm_query: nn.Module
    k: Linear  # none where another layer's keys are read
    norm_key: nn.Module
    o_down: Tensor | None
    o: Any

    def narrow(self, x: Tensor) -> Tensor:
        """The queries' latent, normed; x itself where there is none."""
        return x if self.q_down is None else self.norm_latent(self.q_down(x))

    def query(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Queries [batch, heads, query, head_dim] of what `narrow` gives."""
        q = self.q(x).unflatten(-1, (self.spec.n_heads, -1))
        return self.turn(self.norm_query(q).transpose(1, 2), context)

    def store(self, source: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
        """The keys [batch, 1, token, head_dim] of [batch, token, d_source]."""
        return {"key": self.turn(self.norm_key(self.k(source))[:, None], context)}

    def expand(self, q: Tensor, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v): q as it is, k and v the same [batch, 1, key, head_dim]."""
        return q, stored["key"], stored["key"]

    def output(self, y: Tensor, context: ForwardContext) -> Tensor:
        """[batch, query, d_model] of y [batch, heads, query, head_dim]."""
        spec = self.spec
        y = self.turn(y, context, back=True).transpose(1, 2).flatten(2)
        if self.o_down is None:
            return self.o(y)
        groups = self.o_down.unflatten(0, (spec.out_groups, -1))
        narrow = torch.einsum("btgi,goi->btgo", y.unflatten(-1, (spec.out_groups, -1)), groups)
        return self.o(narrow.flatten(2))
