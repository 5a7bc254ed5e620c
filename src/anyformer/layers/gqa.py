"""Multi-head, multi-query (Shazeer 2019, arXiv:1911.02150) and grouped-query (Ainslie et al. 2023, arXiv:2305.13245)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from anyformer.errors import SpecError
from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec, with_last
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.convolved_heads import ConvolvedHeads, ConvolvedHeadsSpec
from anyformer.layers.linear import (
    Linear,
    LinearSpec,
    Together,
    in_proportion,
    low_rank,
    named,
    shared_width,
    side_by_side,
)
from anyformer.layers.projection import Projection, ProjectionSpec
from anyformer.layers.rotary import RotarySpec
from anyformer.spec import (
    Count,
    HeadMap,
    KeptBeside,
    MapSpec,
    Place,
    Placed,
    Positive,
    Sizes,
    TrueShare,
    Width,
)

MIXED = "mixed"  # the store of what later tokens are mixed with


class GQASpec(ProjectionSpec):
    """n_heads queries on n_kv_heads keys and values: equal is multi-head, 1 is multi-query."""

    takes_blocks: ClassVar[bool] = True

    n_heads: Count
    n_kv_heads: Count | None = None  # None: n_heads
    head_dim: Width | None = None  # None: d_model / n_heads
    value_dim: Width | None = None  # features of a head's values; None: head_dim
    values_are_keys: bool = False  # as their map gives them, before their norm and rotation: one map for both (Gemma 4)
    bias_query: bool = False
    bias_key: bool = False
    bias_value: bool = False
    bias_output: bool = False
    norm_query: MapSpec | None = None
    norm_key: MapSpec | None = None
    norm_value: MapSpec | None = None
    # one weight for all heads, one each, or all as one vector
    norm_over: Literal["head", "heads", "projection"] = "head"
    norm_last: bool = False  # the norms read what the rotary positions have turned (Hunyuan)
    clip: Positive | None = None  # clamp q, k and v to ± clip (OLMo)
    rotary: RotarySpec | None = None
    with_input: bool = False  # what is read is the stream and the embedding's output, side by side (Zamba)
    norm_read: MapSpec | None = None  # of both
    common: str | None = None  # the maps are those of all attention that has this name (Zamba)
    adapter: Width | None = None  # the rank of what is added to queries, keys and values, of its own (Zamba 2)
    convolved: ConvolvedHeadsSpec | None = None  # over the last tokens, before norms and rotation (CCA)
    short: CausalConvolutionSpec | None = None  # of keys, and of values, added to them, before norms (Inkling)
    # outer: the stream around the bottleneck that it stands in (MobileBERT)
    values_read: Literal["stream", "outer"] = "stream"
    share: TrueShare | None = None  # of d_model, the width of all heads together; None: all of it (ConvBERT: half)

    def __post_init__(self) -> None:
        if self.n_heads % self.kv_heads:
            raise self.refusal("n_heads", f"must be a multiple of n_kv_heads = {self.n_kv_heads}")
        if self.head_dim is not None and self.rotary is not None:
            self.rotary.dims(self.head_dim)
        if self.values_are_keys and self.bias_value:
            raise self.refusal("bias_value", "is of no map: values are keys, whose bias is bias_key; leave it out")
        if self.values_are_keys and self.value_dim not in (None, self.head_dim):
            raise self.refusal("value_dim", "differs from head_dim, and values are keys; leave one out")
        if self.values_read == "outer" and (self.values_are_keys or self.adapter is not None or self.with_input):
            raise self.refusal(
                "values_read", "are of a map of their own, and of what lies outside alone; leave the others out"
            )
        if self.norm_last and self.norm_over == "projection":
            raise self.refusal("norm_last", "is of heads that have turned; take norm_over: head or heads")
        if self.values_are_keys and self.adapter is not None:
            raise self.refusal("adapter", "is of values of a map of their own, and values are keys; leave one out")
        if self.norm_read is not None and not self.with_input:
            raise self.refusal("norm_read", "is of the stream and the input, and it reads the stream; set with_input")
        if self.convolved is not None and (self.values_are_keys or self.value_dim not in (None, self.head_dim)):
            raise self.refusal("convolved", "takes values of a map of their own, as wide as keys; leave the others out")
        alone = self.values_read == "stream" and self.convolved is None and not self.values_are_keys
        self.require("short", self.short is None or alone, "is of keys and of values as maps of their own give them")
        self.require("share", None in (self.share, self.head_dim), "and head_dim tell heads' width; leave one out")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    def sizes(self, place: Place) -> tuple[int, int, int]:
        width = shared_width(place.d_model, self.share)
        if self.head_dim is None and width % self.n_heads:
            of = "d_model" if self.share is None else f"{self.share} d_model"
            raise SpecError(f"GQA.n_heads = {self.n_heads} does not divide {of} = {width}; change one or set head_dim")
        head_dim = self.head_dim or width // self.n_heads
        if self.rotary is not None:
            self.rotary.dims(head_dim)
        return self.n_heads, head_dim, self.value_dim or head_dim

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        n, width, value_width = self.sizes(place)
        of_keys = HeadMap("key", "k", self.kv_heads, width), HeadMap("value", "v", self.kv_heads, value_width)
        return HeadMap("query", "q", n, width), *of_keys, HeadMap("output", "o", n, value_width)

    def rotation(self, place: Place) -> tuple[RotarySpec, int] | None:
        return self.rotary and (self.rotary, self.sizes(place)[1])

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n_heads, head_dim, value_dim = self.sizes(place)
        width, kv_width, v_width = n_heads * head_dim, self.kv_heads * head_dim, self.kv_heads * value_dim
        source, own, common = place.at(self._d_in(place.d_source)), place.d_source > 0, self.common
        stream = place.at(self._d_in(place.d_model))
        apart = own and not self.values_are_keys
        of_values = place.at(place.d_outer) if self.values_read == "outer" else source
        if self.values_read == "outer" and not place.d_outer:
            raise self.refusal("values_read", "needs a stream around the layer's; give the layer a Bottleneck")

        def norm(spec: MapSpec | None, n: int, width: int = head_dim) -> Placed:
            shapes = {"head": (width,), "heads": (n, width), "projection": (n * width,)}
            return spec and (spec, place.at(*shapes[self.norm_over]))

        def into(d_out: int, bias: bool, role: Literal["matrix", "query", "inner"] = "matrix") -> LinearSpec:
            return LinearSpec(d_out=Width(d_out), bias=bias, role=role, axes=("heads", "d_model"))

        out = LinearSpec(bias=self.bias_output, role="output", axes=("d_model", "heads"))
        self.require("short", own or self.short is None, "is of keys of the layer's own; leave it out")
        if self.convolved is not None and (not own or self.kv_heads * head_dim % 2):
            raise self.refusal("convolved", "is of keys of the layer's own, and halves their width; leave it out")
        return {
            "q": (named(into(width, self.bias_query, "query"), common, "q"), stream),
            "k": (named(into(kv_width, self.bias_key), common, "k"), source) if own else None,
            "v": (named(into(v_width, self.bias_value, "inner"), common, "v"), of_values) if apart else None,
            "o": (named(out, common, "o"), place.at(n_heads * value_dim)),
            "norm_read": self.norm_read and (self.norm_read, stream),
            "adapters": [(low_rank(self.adapter, n), stream) for n in (width, kv_width, v_width) if self.adapter],
            "norm_query": norm(self.norm_query, n_heads),
            "norm_key": norm(self.norm_key, self.kv_heads) if own else None,
            "norm_value": norm(self.norm_value, self.kv_heads, value_dim) if own else None,
            "convolved": self.convolved and (self.convolved, self._place_convolved(place)),
            "short_key": self.short and (self.short, place.at(kv_width)),
            "short_value": self.short and (self.short, place.at(v_width)),
            "frequencies": self.frequencies(place),
        }

    def _d_in(self, width: int) -> int:
        return 2 * width if self.with_input else width

    @property
    def reads_input(self) -> bool:
        return self.with_input

    @property
    def of_one(self) -> bool:
        return super().of_one or self.adapter is not None or self.values_read == "outer"

    def _place_convolved(self, place: Place) -> Place:
        return place.at(self.n_heads + self.kv_heads, self.sizes(place)[1])

    @property
    def mixes(self) -> bool:
        return self.convolved is not None or self.short is not None

    def beside(self, place: Place) -> tuple[KeptBeside, ...]:
        if self.short is not None:
            widths = {"key": self.sizes(place)[1], "value": self.sizes(place)[2]}
            tails = {name: (self.short.tail, self.kv_heads * width) for name, width in widths.items()}
            return (KeptBeside(MIXED, tails, "state"),)
        if self.convolved is None:
            return ()
        inner = self._place_convolved(place)
        return (KeptBeside(MIXED, self.convolved.state_shapes(inner, self.kv_heads * inner.shape[1]), "state"),)

    @property
    def stored_heads(self) -> int:
        return self.kv_heads if self.value_dim in (None, self.head_dim) else 0

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        _, head_dim, value_dim = self.sizes(place)
        return {"key": (self.kv_heads, head_dim), "value": (self.kv_heads, value_dim)}

    def narrowed(self, place: Place, ranks: int) -> GQASpec | None:
        """Where ranks are more than key/value heads, several have one. None where a norm is of all heads as one vector,
        where values are of two halves of all, and where they are of what lies outside."""
        of_all = self.norm_over == "projection" and (self.norm_query or self.norm_key)
        if of_all or self.convolved is not None or self.adapter is not None or self.values_read == "outer":
            return None
        _, head_dim, _ = self.sizes(place)
        kept = self.n_kv_heads
        if kept is not None:
            kept = Count(1) if ranks % kept == 0 else self.divided("n_kv_heads", ranks)
        return self.but(n_heads=self.divided("n_heads", ranks), n_kv_heads=kept, head_dim=Width(head_dim), share=None)

    def resized(self, to: Sizes) -> GQASpec:
        n_heads, n_kv_heads, head_dim = to.heads(self.n_heads, self.kv_heads, self.head_dim)
        new = head_dim or shared_width(to.d_model, self.share) // n_heads
        value_dim = None
        if self.value_dim is not None:  # in the old proportion to a key's, so that what differs stays different
            value_dim = in_proportion(self.value_dim, self.head_dim or self.value_dim, new, 8)
        return to.fields(
            self,
            n_heads=n_heads,
            n_kv_heads=self.n_kv_heads and n_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            rotary=self.rotary and self.rotary.resized(to).fitted(new),
        )


class GQA(Projection[GQASpec]):
    q: Linear
    k: Linear  # none, nor v, where another layer's keys and values are read
    v: Linear  # none where values are keys either
    norm_query: nn.Module
    norm_key: nn.Module
    norm_value: nn.Module
    norm_read: nn.Module
    adapters: Any
    convolved: ConvolvedHeads | None
    short_key: CausalConvolution | None
    short_value: CausalConvolution | None
    together: Together | None = None  # q, k and v as one product, for decoding

    def query(self, x: Tensor, context: ForwardContext) -> Tensor:
        """Queries [batch, heads, query, head_dim] of x [batch, query, d_model]."""
        return self._queries(self.q(x), context)

    def store(self, source: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
        """Keys [batch, kv heads, token, head_dim] and values [batch, kv heads, token, value_dim] of [batch, token, d_source]."""
        return self._kept(*self._of_source(source), context)

    def unturned(self, source: Tensor) -> Mapping[str, Tensor]:
        n, (k, v) = self.spec.kv_heads, self._of_source(source)
        return {"key": self._heads(k, n, self.norm_key), "value": self._heads(v, n, self.norm_value)}

    def _of_source(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of all heads side by side, as their maps give them."""
        k = self.k(source)
        return k, k if self.spec.values_are_keys else self.v(source)

    def project(
        self, narrow: Tensor, x: Tensor, context: ForwardContext, store: Store
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """(`query`, `store`) of x [batch, token, d_model], by one product where the three maps can be."""
        if self.spec.with_input:
            x = self.norm_read(torch.cat((x, context.given("input")), -1))
        if self.spec.values_are_keys:
            return self.query(x, context), self.store(x, context)
        if self.spec.values_read == "outer":
            k, v = self.k(x), self.v(context.given("outer"))
            return self.query(x, context), self._kept(k, v, context)
        q, k, v = side_by_side(x, (self.q, self.k, self.v), self.together)
        if self.spec.adapter is not None:
            q, k, v = (y + adapter(x) for y, adapter in zip((q, k, v), self.adapters, strict=True))
        if self.convolved is not None:
            q, k, v = self.convolved(q, k, v, context, store.part(MIXED))
        if self.short_key is not None and self.short_value is not None:
            k, v = with_last({"key": (k, self.short_key), "value": (v, self.short_value)}, context, store.part(MIXED))
        return self._queries(q, context), self._kept(k, v, context)

    def _queries(self, q: Tensor, context: ForwardContext) -> Tensor:
        return self._turned(q, self.spec.n_heads, self.norm_query, context)

    def _kept(self, k: Tensor, v: Tensor, context: ForwardContext) -> Mapping[str, Tensor]:
        n = self.spec.kv_heads
        value = self._heads(v, n, self.norm_value)
        return {"key": self._turned(k, n, self.norm_key, context), "value": value}

    def _turned(self, x: Tensor, n_heads: int, norm: nn.Module, context: ForwardContext) -> Tensor:
        if not self.spec.norm_last:
            return self.turn(self._heads(x, n_heads, norm), context)
        x = self.turn(self._heads(x, n_heads), context)
        return norm(x.transpose(1, 2)).transpose(1, 2)

    def _heads(self, x: Tensor, n_heads: int, norm: nn.Module | None = None) -> Tensor:
        if self.spec.clip is not None:
            x = x.clamp(-self.spec.clip, self.spec.clip)
        if norm is not None and self.spec.norm_over == "projection":
            x = norm(x)
        x = x.view(*x.shape[:-1], n_heads, x.shape[-1] // n_heads)
        if norm is not None and self.spec.norm_over != "projection":
            x = norm(x)
        return x.transpose(1, 2)
