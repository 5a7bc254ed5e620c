"""Scores of content to position and position to content. He et al. 2020, arXiv:2006.03654, section 3.1.

DeBERTa v1 has a vector for each distance; v2 and v3 have one for each bucket, normed, and project it as the layer projects
its tokens (arXiv:2006.03654, section 5 of the appendix; arXiv:2111.09543).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.layers.execution import constant
from anyformer.layers.gqa import GQASpec
from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.layers.scores import Content, ScoreSpec
from anyformer.layers.tokens import Tokens
from anyformer.spec import Cost, Count, Length, MapSpec, PartSpec, Place, Placed, Weight, Workload


class RelativeTableSpec(PartSpec):
    """A vector of the stream's width for each distance up to `farthest` either way, or for each of `n_buckets` a side.

    Distances below half of the buckets have one each, those up to `farthest` share the other half, logarithmically.
    """

    farthest: Length
    n_buckets: Count | None = None  # None: one for each distance
    norm: MapSpec | None = None

    def __post_init__(self) -> None:
        if self.n_buckets is not None and self.n_buckets % 2:
            raise self.refusal("n_buckets", "must be an even number above 0: half are exact, half logarithmic")

    @property
    def side(self) -> int:
        """Vectors for one direction."""
        return self.n_buckets or self.farthest

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((2 * self.side, place.d_model), ("bucket", "d_model"), "table")}

    def parts(self, place: Place) -> Mapping[str, Placed]:
        return {"norm": self.norm and (self.norm, place.at(place.d_model))}

    def rows(self, distance: Tensor) -> Tensor:
        """The row of each query position - key position."""
        if self.n_buckets is not None and self.farthest - 1 > self.n_buckets // 2:
            exact = self.n_buckets // 2
            # In the arithmetic of the released code: what is rounded up next could fall on either side.
            span = torch.log(constant([(self.farthest - 1) / exact], distance))
            far = torch.ceil(torch.log(distance.abs().clamp(min=1) / exact) / span * (exact - 1)).long() + exact
            distance = torch.where(distance.abs() <= exact, distance, distance.sign() * far)
        return (distance + self.side).clamp(0, 2 * self.side - 1)


class RelativeTable(Part[RelativeTableSpec]):
    weight: Tensor
    norm: nn.Module

    def forward(self) -> Tensor:
        """The vectors [row, d_model]."""
        return self.norm(self.weight)


class DisentangledSpec(ScoreSpec, abstract=True):
    """A summand of the scores between a token's content and a distance, scaled as q · k is."""

    heads_apart = True
    table: RelativeTableSpec
    # of the table's vectors, to all heads; None: the layer's own, as many heads of k
    projection: LinearSpec | None = None
    reads_content = True

    def unfit(self, attention: Any) -> str | None:
        own = attention.projection
        as_tokens = isinstance(own, GQASpec) and own.kv_heads == own.n_heads and not own.of_one
        if self.projection is not None or (as_tokens and attention.reads != "layer"):
            return None
        return (
            f"hold {self.kind}, which projects distances as the layer projects its tokens: by maps of the stream alone, with as "
            "many heads of keys as of queries; give it a projection of its own"
        )

    def parts(self, place: Place) -> Mapping[str, Placed]:
        projection = self.projection and self.projection.but(d_out=place.shape[0] * place.shape[1])
        return {"table": (self.table, place), "projection": projection and (projection, place.at(place.d_model))}

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The projection of the table, and its product with every query or key."""
        n_heads, width = place.shape
        keys, rows = workload.past + workload.query if workload.own else workload.memory, 2 * self.table.side
        tokens = workload.query if isinstance(self, ContentToPositionSpec) else keys
        return Cost({"distances": 2 * rows * n_heads * width * (place.d_model + workload.batch * tokens)})


class ContentToPositionSpec(DisentangledSpec):
    """q_i · W_k r, where r is the table's vector for the distance from query i to key j."""


class PositionToContentSpec(DisentangledSpec):
    """k_j · W_q r, where r is the table's vector for the distance from query i to key j."""


class ContentToPosition(Part[ContentToPositionSpec]):
    table: RelativeTable
    projection: nn.Module | None

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch, heads, query, key]."""
        every = _products(content.q, _by_head(self, content, "k") * content.scale)
        rows = self.spec.table.rows(query.position - key.position)
        return every.gather(-1, rows.expand(*every.shape[:-1], -1))


class PositionToContent(Part[PositionToContentSpec]):
    table: RelativeTable
    projection: nn.Module | None

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch, heads, query, key]."""
        every = _products(content.keys, _by_head(self, content, "q") * content.scale)
        rows = self.spec.table.rows(query.position - key.position).mT
        return every.gather(-1, rows.expand(*every.shape[:-1], -1)).mT


def _products(x: Tensor, vectors: Tensor) -> Tensor:
    """[batch, heads, token, row] of x [batch, heads, token, head_dim] and [heads, row, head_dim], neither copied."""
    batch, n = x.shape[0], x.shape[2]
    together = x.transpose(0, 1).flatten(1, 2)  # tokens of all rows lie one after the other in memory already
    return (together @ vectors.mT).unflatten(1, (batch, n)).transpose(0, 1)


def _by_head(part: ContentToPosition | PositionToContent, content: Content, name: str) -> Tensor:
    """The table's vectors, projected, as [heads, row, head_dim]."""
    map_, (n_heads, width) = part.projection, part.place.shape
    map_ = getattr(content.projection, name) if map_ is None else map_
    return map_(part.table()).unflatten(-1, (n_heads, width)).transpose(0, 1)
