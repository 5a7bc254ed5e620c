"""Relative positions that read what tokens say: Shaw et al. 2018, arXiv:1803.02155; Dai et al. 2019, arXiv:1901.02860."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.part import Part
from anyformer.layers.scores import Content, ScoreSpec, ValueSpec
from anyformer.layers.tokens import Tokens
from anyformer.spec import Cost, Load, PartSpec, Site, Weight, Window


class RelativeSinusoidSpec(ScoreSpec):
    """u·k + (q + v)·(W r), scaled as q·k is; r is the sinusoid [sin‖cos] of query position - key position.

    Gopher and Chinchilla have it in every layer, with weights of the layer's own. Within a document positions count by one,
    so that no distance exceeds the number of keys.
    """

    base: float = 10_000.0
    bidirectional: bool = False  # distances of keys that come after are told apart too
    reads_content = True

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        n_heads, width = site.shape
        bias = Weight((n_heads, width), ("heads", "head_dim"), "bias", fill=0.0)
        return {
            "r": Weight((n_heads * width, site.d_model), ("heads", "d_model")),
            "bias_key": bias,
            "bias_position": bias,
        }

    def cost(self, site: Site, load: Load) -> Cost:
        """Return the projection of the distances' sinusoids, and their product with the queries."""
        n_heads, width = site.shape
        keys = load.past + load.query
        distances = 2 * keys - 1 if self.bidirectional else keys
        made = 2 * distances * site.d_model * n_heads * width
        return Cost({"distances": made + 2 * load.batch * n_heads * load.query * distances * width})

    def sinusoids(self, distances: Tensor, d_model: int) -> Tensor:
        """Return [distance, d_model] for distances in tokens."""
        pairs = torch.arange(0, d_model, 2, device=distances.device, dtype=torch.float32)
        angles = distances.float()[:, None] * self.base ** -(pairs / d_model)
        return torch.cat((angles.sin(), angles.cos()), -1)[:, :d_model]


class RelativeSinusoid(Part[RelativeSinusoidSpec]):
    r: Tensor
    bias_key: Tensor
    bias_position: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        q, k = content.q, content.k
        groups = q.shape[1] // k.shape[1]
        of_keys = (self.bias_key[:, None] * (k.repeat_interleave(groups, 1) if groups > 1 else k)).sum(-1)[:, :, None]
        return (self.by_distance(q + self.bias_position[:, None], query, key) + of_keys) * content.scale

    def by_distance(self, q: Tensor, query: Tokens, key: Tokens) -> Tensor:
        """Return q·(W r) for q [batch, heads, query, head_dim]; [batch, heads, query, key]."""
        n, keys = q.shape[2], key.position.shape[-1]
        in_order = query.span and key.span and query.span[1] == key.span[1] and not key.turned
        if in_order and not self.spec.bidirectional:
            # Row i wants the distances n_keys - n + i … 0, then those of keys to come, which no mask shows: what lies in
            # memory after them will do. So the rows are read one column further apart (Dai et al. 2019, appendix B).
            every = q @ self.distances(keys - 1, 0).mT
            return every if n == 1 else F.pad(every, (1, 0)).flatten(-2)[..., n:].unflatten(-1, (n, keys))
        farthest = max(n, keys) - 1
        first = -farthest if self.spec.bidirectional else 0
        every = q @ self.distances(farthest, first).mT
        wanted = farthest - (query.position - key.position).clamp(first, farthest)
        return every.gather(-1, wanted.expand(*every.shape[:-1], -1))

    def distances(self, start: int, stop: int) -> Tensor:
        """Return W r for the distances from start down to stop, as [heads, distance, head_dim]."""
        steps = torch.arange(start, stop - 1, -1, device=self.r.device)
        sinusoids = self.spec.sinusoids(steps, self.site.d_model).to(self.r.dtype)
        return F.linear(sinusoids, self.r).unflatten(-1, (len(self.bias_key), -1)).transpose(0, 1)


def _clipped(query: Tokens, key: Tokens, farthest: int) -> Tensor:
    """Return the row of each distance from query to key in a table of 2 · farthest + 1."""
    return (key.position - query.position).clamp(-farthest, farthest) + farthest


class NearestSpec(PartSpec, abstract=True):
    """A vector for each distance up to `farthest` either way, one table for all heads; those farther share the last."""

    farthest: Window

    def __post_init__(self) -> None:
        if self.farthest < 1:
            raise self.refusal("farthest", "must be at least 1 token")

    def weights(self, site: Site) -> Mapping[str, Weight | None]:
        return {"weight": Weight((2 * self.farthest + 1, site.shape[-1]), ("distance", "head_dim"), "table")}

    def cost(self, site: Site, load: Load) -> Cost:
        n_heads, width = site.shape
        return Cost({"distances": 2 * load.batch * n_heads * load.query * (2 * self.farthest + 1) * width})


class ShawKeysSpec(NearestSpec, ScoreSpec):
    """q · a, scaled as q · k is: a vector for each distance up to `farthest` either way, one for all heads (equation 5)."""

    reads_content = True


class ShawKeys(Part[ShawKeysSpec]):
    weight: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        every = content.q @ (self.weight.mT * content.scale)  # [batch, heads, query, distance]
        return every.gather(-1, _clipped(query, key, self.spec.farthest).expand(*every.shape[:-1], -1))


class ShawValuesSpec(NearestSpec, ValueSpec):
    """Σ weight · a: a vector for each distance up to `farthest` either way, added to the key's value (equation 3)."""


class ShawValues(Part[ShawValuesSpec]):
    weight: Tensor

    def forward(self, weights: Tensor, query: Tokens, key: Tokens) -> Tensor:
        rows = _clipped(query, key, self.spec.farthest).expand(weights.shape)
        shares = weights.new_zeros(*weights.shape[:-1], len(self.weight)).scatter_add(-1, rows, weights)
        return shares.to(self.weight.dtype) @ self.weight
