"""Multi-head latent attention: keys and values of all heads from one narrow vector a token. DeepSeek-AI 2024, arXiv:2405.04434.

Section 2.1: what is kept of a token is that latent and one rotary key for all heads. Many queries read keys and values expanded
from it; few read it as it is, the expansion of keys folded into the queries and that of values into the output (`absorb`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from anyformer.layers.context import ForwardContext
from anyformer.layers.linear import Linear, LinearSpec, in_proportion
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.part import is_plain
from anyformer.layers.projection import Projection, ProjectionSpec
from anyformer.layers.rotary import RotarySpec
from anyformer.spec import Count, HeadMap, MapSpec, Place, Placed, Sizes, Width, Workload


class MLASpec(ProjectionSpec):
    """Queries and keys of head_dim features of each head's own and rotary_dim that all heads' keys share; values of value_dim."""

    n_heads: Count
    kv_rank: Width  # of the latent that keys and values come from
    query_rank: Width | None = None  # of the latent that queries come from; None: they come from the stream
    head_dim: Width
    rotary_dim: Width | None = None  # None: no such features
    value_dim: Width | None = None  # None: head_dim
    rotary: RotarySpec | None = None  # of the shared features; None: they do not turn (Kimi Linear)
    unnormed: bool = False  # queries are of their latent and, beside it, of what it was before its norm (A.X K2)
    norm_kv: MapSpec | None = RMSNormSpec(eps=1e-6)
    norm_query: MapSpec | None = RMSNormSpec(eps=1e-6)  # of the queries' latent, where there is one
    scale_correction: bool = False  # latents times √(d_model / rank) (LongCat-Flash, arXiv:2509.01322, section 2.3.1)
    bias_down: bool = False  # of the maps to the latents and to the rotary key
    bias_output: bool = False

    def __post_init__(self) -> None:
        if self.rotary is not None:
            if self.rotary_dim is None:
                raise self.refusal("rotary_dim", "must be given beside rotary, which turns so many features")
            self.rotary.dims(self.rotary_dim)
        normed = self.query_rank is not None and self.norm_query is not None
        self.require(
            "unnormed",
            normed or not self.unnormed,
            "is of a latent of queries, and its norm; give query_rank and norm_query",
        )

    @property
    def turning(self) -> int:
        """Features of each query, and of the one key for all heads, which rotate where there is a rotation."""
        return self.rotary_dim or 0

    @property
    def value_width(self) -> int:
        """Features of a value."""
        return self.value_dim or self.head_dim

    def sizes(self, place: Place) -> tuple[int, int, int]:
        return self.n_heads, self.head_dim + self.turning, self.value_width

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        n, width, value = self.sizes(place)
        of_keys = HeadMap("key", "k", n, self.head_dim), HeadMap("value", "v", n, value)
        return HeadMap("query", "q", n, width), *of_keys, HeadMap("output", "o", n, value)

    def narrow_width(self, place: Place) -> int:
        return self.index_width(place) * (2 if self.unnormed else 1)

    def index_width(self, place: Place) -> int:
        return self.query_rank or place.d_model

    def rotation(self, place: Place) -> tuple[RotarySpec, int] | None:
        return self.rotary and (self.rotary, self.turning)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n_heads, width, value = self.sizes(place)
        source, narrow = place.at(place.d_source), self.query_rank

        def down(rank: int, axis: str) -> LinearSpec:
            return LinearSpec(d_out=Width(rank), bias=self.bias_down, axes=(axis, "d_model"))

        def up(width: int, rank: str) -> LinearSpec:
            return LinearSpec(d_out=Width(n_heads * width), axes=("heads", rank))

        latent, own = place.at(self.kv_rank), place.d_source > 0
        out = LinearSpec(bias=self.bias_output, role="output", axes=("d_model", "heads"))
        return {
            "q_down": (down(narrow, "query_rank"), place) if narrow else None,
            "norm_query": self.norm_query and (self.norm_query, place.at(narrow)) if narrow else None,
            "q": (
                up(width, "query_rank" if narrow else "d_model"),
                place.at(self.narrow_width(place)) if narrow else place,
            ),
            "kv_down": (down(self.kv_rank, "kv_rank"), source) if own else None,
            "norm_kv": self.norm_kv and (self.norm_kv, latent) if own else None,
            "k": (up(self.head_dim, "kv_rank"), latent),
            "v": (up(value, "kv_rank"), latent),
            "k_rotary": (down(self.turning, "head_dim"), source) if self.turning and own else None,
            "o": (out, place.at(n_heads * value)),
            "frequencies": self.frequencies(place),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"latent": (self.kv_rank + self.turning,)}

    def absorbs(self, query: int, keys: int) -> bool:
        """Whether that takes fewer multiplications. A whole sequence at once, as in training, is expanded."""
        pair, expanded = 2 * self.n_heads * query * keys, self.head_dim + self.turning + self.value_width
        absorbing = pair * sum(self.absorbed_sizes()) + self.between(query, keys, absorbed=True)
        return query < keys and absorbing < pair * expanded + self.between(query, keys, absorbed=False)

    def absorbed_sizes(self) -> tuple[int, int]:
        return self.kv_rank + self.turning, self.kv_rank

    def between(self, query: int, keys: int, *, absorbed: bool) -> int:
        """Of k and v of each key; or, absorbed, of the same matrices applied to each query and each result."""
        return 2 * self.n_heads * self.kv_rank * (self.head_dim + self.value_width) * (query if absorbed else keys)

    def n_mapped(self, name: str, workload: Workload) -> int:
        """The maps of latents to keys and values are counted by `between`."""
        of_source = {"kv_down": workload.memory, "k_rotary": workload.memory, "k": 0, "v": 0}
        return of_source.get(name, workload.query)

    def narrowed(self, place: Place, ranks: int) -> MLASpec:
        """The latents are whole on every rank: all heads read them."""
        return self.but(n_heads=self.divided("n_heads", ranks))

    def resized(self, to: Sizes) -> MLASpec:
        """Heads and head_dim follow their rule; all other widths stay in proportion to head_dim, as in the papers."""
        n_heads, _, head_dim = to.heads(self.n_heads, self.n_heads, self.head_dim)
        assert head_dim is not None
        like = partial(in_proportion, old=self.head_dim, new=head_dim)
        turning = self.rotary_dim and like(self.rotary_dim)
        return to.fields(
            self,
            n_heads=n_heads,
            head_dim=head_dim,
            kv_rank=like(self.kv_rank),
            query_rank=self.query_rank and like(self.query_rank),
            rotary_dim=turning,
            value_dim=self.value_dim and like(self.value_dim),
            rotary=self.rotary and self.rotary.resized(to).fitted(turning or 0),
        )


class MLA(Projection[MLASpec]):
    q_down: Linear | None
    norm_query: nn.Module
    q: Linear
    kv_down: Linear  # none, nor k_rotary, where another layer's latents are read
    norm_kv: nn.Module
    k: Linear
    v: Linear
    k_rotary: Linear | None

    def narrow(self, x: Tensor) -> Tensor:
        """The queries' latent, normed, and beside it what it was before where queries are of both; x itself without a latent."""
        if self.q_down is None:
            return x
        latent = self.q_down(x)
        normed = self._corrected(self.norm_query(latent))
        return torch.cat((normed, latent), -1) if self.spec.unnormed else normed

    def indexed(self, narrow: Tensor) -> Tensor:
        return narrow[..., : self.spec.query_rank] if self.spec.unnormed else narrow

    def query(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Queries [batch, heads, query, head_dim + rotary_dim] of what `narrow` gives."""
        spec = self.spec
        q = self.q(x).unflatten(-1, (spec.n_heads, -1)).transpose(1, 2)
        if spec.rotary is None:
            return q
        plain, turning = q.split((spec.head_dim, spec.turning), -1)
        return torch.cat((plain, self.turn(turning, context)), -1)

    def store(self, source: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
        """The latent, then the rotary key, [batch, token, kv_rank + rotary_dim] of [batch, token, d_source]."""
        latent = self._corrected(self.norm_kv(self.kv_down(source)))
        if self.k_rotary is None:
            return {"latent": latent}
        key = self.turn(self.k_rotary(source)[:, None], context)[:, 0]
        return {"latent": torch.cat((latent, key), -1)}

    def _corrected(self, latent: Tensor) -> Tensor:
        """The latent [batch, token, rank], which with a norm has a length of √rank, with one of √d_model."""
        return latent * (self.place.d_model / latent.shape[-1]) ** 0.5 if self.spec.scale_correction else latent

    def expand(self, q: Tensor, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v): q as it is, k [batch, heads, key, head_dim + rotary_dim] and v [batch, heads, key, value_dim]."""
        n_heads, turning = self.spec.n_heads, self.spec.turning
        latent, key = stored["latent"].split((self.spec.kv_rank, turning), -1)
        k, v = (up(latent).unflatten(-1, (n_heads, -1)).transpose(1, 2) for up in (self.k, self.v))
        if turning:
            k = torch.cat((k, key[:, None].expand(-1, n_heads, -1, -1)), -1)
        return q, k, v

    def absorb(self, q: Tensor, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(q, k, v): q [batch, heads, query, kv_rank + rotary_dim], and k and v of one head [batch, 1, key, width].

        q·(W c) = (Wᵀq)·c, and the sum of W c is W times the sum of c.
        """
        spec = self.spec
        plain, turning = q.split((spec.head_dim, spec.turning), -1)
        folded = torch.einsum("bhqd,hdr->bhqr", plain, self.k.weight.unflatten(0, (spec.n_heads, -1)))
        latent = stored["latent"][:, None]
        return torch.cat((folded, turning), -1), latent, latent[..., : spec.kv_rank]

    def can_absorb(self) -> bool:
        return is_plain(self.k, Linear) and is_plain(self.v, Linear)

    def unfold(self, y: Tensor) -> Tensor:
        """[batch, heads, query, value_dim] of y [batch, heads, query, kv_rank]."""
        return torch.einsum("bhqr,hvr->bhqv", y, self.v.weight.unflatten(0, (self.spec.n_heads, -1)))
