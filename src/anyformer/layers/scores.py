"""Summands of attention's scores: ALiBi (Press et al. 2021, arXiv:2108.12409), T5's buckets (Raffel et al. 2019), segments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.execution import constant
from anyformer.layers.part import Part
from anyformer.layers.tokens import Tokens
from anyformer.spec import Count, PartSpec, Place, ScaleSpec, Sizes, Weight, Window


class Content(NamedTuple):
    """What scores of content read."""

    q: Tensor  # [batch, heads, query, head_dim], as it enters the product
    k: Tensor  # [batch, kv heads, key, head_dim]
    projection: Any  # the layer's own: DeBERTa projects its positions with it
    scale: float  # of q · k
    hides_later: bool = False  # the mask hides keys that come after their query, so that their scores may be anything
    x: Tensor | None = None  # what queries are made of [batch, query, d_model]
    growth: Tensor | None = None  # what queries were multiplied by, by their positions [batch or 1, 1, query, 1]

    @property
    def keys(self) -> Tensor:
        """The keys of each head of queries [batch, heads, key, head_dim]."""
        groups = self.q.shape[1] // self.k.shape[1]
        return self.k.repeat_interleave(groups, 1) if groups > 1 else self.k


class ScoreSpec(PartSpec, abstract=True):
    """A summand of the scaled scores; its place's shape is (n_heads, head_dim).

    Its module is called with (content, query, key) and returns [batch or 1, heads, query, key], or None where it adds nothing;
    query and key are the facts about the tokens, shaped to broadcast against each other, and content is None unless the part
    `reads_content`.
    """

    reads_content: ClassVar[bool] = False
    # Whether what it adds to some heads can be made without the others, its weights cut by heads; `place.heads` says which.
    heads_apart: ClassVar[bool] = False

    # Whether it is faster where no distance in a text exceeds the number of its keys, which a pass then has to find out.
    by_count: ClassVar[bool] = False

    def unfit(self, attention: Any) -> str | None:
        """Why it is no summand of the scores of an attention, whose specification is given, or None."""
        return None

    @property
    def of_distance(self) -> bool:
        """Whether all that it adds to a head's pair hangs on how far the key is from the query, and on which side."""
        return False


def memo_key(names: Sequence[str], parts: Sequence[Part[Any]]) -> str | None:
    """What scores by position depend on, beside `names`, as a name; None where one has weights of its own."""
    if any(part.spec.shared is None and dict(part.spec.weights(part.place)) for part in parts):
        return None
    return " ".join((*names, *(f"{part.spec.shared or part.spec.key} {part.place.shape}" for part in parts)))


class ValueSpec(PartSpec, abstract=True):
    """What attention's weights add to its values; its place's shape is (n_heads, width of a value).

    Its module is called with (weights [batch, heads, query, key], query, key), facts as a score's, and returns
    [batch, heads, query, width].
    """

    heads_apart: ClassVar[bool] = False  # as a score's


class ALiBiSpec(ScoreSpec):
    """slope · (key position - query position), a slope for each head.

    Falcon scales it as it scales q · k, and rounds slopes and products with the key's position to bfloat16.
    """

    heads_apart = True
    scale: ScaleSpec | None = None  # of head_dim
    rounding: Literal["none", "bfloat16"] = "none"

    @property
    def of_distance(self) -> bool:
        return self.rounding == "none"

    def slopes(self, n_heads: int) -> list[float]:
        """2^(-8i/n) for i = 1 … n; beyond a power of two n, every second slope of 2n."""
        n = 2 ** int(math.log2(n_heads))
        between = [2 ** (-4 * i / n) for i in range(1, 2 * n, 2)]
        return [*(2 ** (-8 * i / n) for i in range(1, n + 1)), *between][:n_heads]


class ALiBi(Part[ALiBiSpec]):
    def forward(self, content: Content | None, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch or 1, heads, query, key]."""
        spec, (n_heads, head_dim) = self.spec, self.place.shape
        first, of = self.place.heads or (0, n_heads)
        slopes = constant(spec.slopes(of)[first : first + n_heads], key.position).view(1, -1, 1, 1)
        if spec.rounding == "none":
            bias = slopes * (key.position - query.position)
        else:  # of the key alone, as theirs: a query's own position adds the same to all its scores
            bias = (slopes.bfloat16() * key.position).float()
        return bias if spec.scale is None else bias * spec.scale.value(head_dim)


class RelativeBucketsSpec(ScoreSpec):
    """T5's learned number for each head and bucket of distance; buckets are exact near, logarithmic far."""

    heads_apart = True
    n_buckets: Count = Count(32)
    max_distance: Window = Window(128)
    bidirectional: bool = False  # half of the buckets are for keys that come after

    def __post_init__(self) -> None:
        exact = self.n_buckets // (4 if self.bidirectional else 2)
        self.require("n_buckets", exact >= 1, f"must be at least {4 if self.bidirectional else 2}")
        if self.max_distance <= exact:
            raise self.refusal("max_distance", f"must be beyond the {exact} tokens that have a bucket each")

    @property
    def of_distance(self) -> bool:
        return True

    def resized(self, to: Sizes) -> RelativeBucketsSpec:
        """Buckets stay enough that near and far ones differ, either way."""
        small = super().resized(to)
        return small.but(n_buckets=Count(max(small.n_buckets, min(self.n_buckets, 8))))

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((self.n_buckets, place.shape[0]), ("bucket", "heads"), "table")}


class RelativeBuckets(Part[RelativeBucketsSpec]):
    weight: Tensor

    def buckets(self, distance: Tensor) -> Tensor:
        """The bucket of each key position - query position."""
        n, offset = self.spec.n_buckets, 0
        if self.spec.bidirectional:
            n //= 2
            offset = (distance > 0) * n
            distance = distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = n // 2
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.spec.max_distance / exact) * (n - exact)
        return offset + torch.where(distance < exact, distance, (exact + far.long()).clamp(max=n - 1))

    def forward(self, content: Content | None, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch or 1, heads, query, key]."""
        return self.of_distances(key.position - query.position)

    def of_distances(self, distance: Tensor) -> Tensor:
        """Scores [batch or 1, heads, query, key] of distances [batch or 1, 1, query, key]."""
        return F.embedding(self.buckets(distance)[:, 0], self.weight).permute(0, 3, 1, 2)


class BySegmentSpec(ScoreSpec):
    """(q + s)·e, scaled as q·k is: e is one of two vectors a head, for keys of the query's segment and for others (XLNet,
    Yang et al. 2019, arXiv:1906.08237, section 2.5).

    Rows of one segment, which token_type_ids do not divide, have nothing added: cost and memory are theirs.
    """

    heads_apart = True
    reads_content = True

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n_heads, width = place.shape
        table = Weight((2, n_heads, width), ("segment", "heads", "head_dim"), "table", plain=False)
        bias = Weight((n_heads, width), ("heads", "head_dim"), "bias", fill=0.0, plain=False)
        return {"weight": table, "bias_segment": bias}


class BySegment(Part[BySegmentSpec]):
    weight: Tensor
    bias_segment: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor | None:
        """Scores [batch, heads, query, key]; None for rows of one segment."""
        if query.segment is None or key.segment is None:
            return None
        both = (content.q + self.bias_segment[:, None]) @ self.weight.permute(1, 2, 0) * content.scale
        return torch.where(query.segment == key.segment, both[..., :1], both[..., 1:])
