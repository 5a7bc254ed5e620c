"""Relative positions that read what tokens say: Shaw et al. 2018, arXiv:1803.02155; Dai et al. 2019, arXiv:1901.02860."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.execution import recorded
from anyformer.layers.part import Part
from anyformer.layers.scores import Content, ScoreSpec, ValueSpec
from anyformer.layers.tokens import Span, Tokens
from anyformer.spec import Cost, PartSpec, Place, Positive, Weight, Window, Workload


class RelativeSinusoidSpec(ScoreSpec):
    """u·k + (q + v)·(W r), scaled as q·k is; r is the sinusoid [sin‖cos] of query position - key position.

    Gopher and Chinchilla have it in every layer, with weights of the layer's own.
    """

    heads_apart = True
    by_count = True
    base: Positive = 10_000.0
    bidirectional: bool = False  # distances of keys that come after are told apart too
    reads_content = True

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n_heads, width = place.shape
        bias = Weight((n_heads, width), ("heads", "head_dim"), "bias", fill=0.0)
        return {
            "r": Weight((n_heads * width, place.d_model), ("heads", "d_model")),
            "bias_key": bias,
            "bias_position": bias,
        }

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The products with W and those of queries and distances."""
        past, query = workload.past, workload.query
        keys = past + query if workload.own else workload.memory
        start, stop = self.between((past, past + query), (past + query - keys if workload.own else 0, keys))
        folds = self.folds(place, workload.batch, query, keys, start - stop + 1)
        made, product = self.products(place, workload.batch * query, start - stop + 1, folded=folds)
        return Cost({"sinusoids": 2 * made, "distances": 2 * product})

    def between(self, query: Span, key: Span) -> Span:
        """The farthest distance of such queries from such keys, and the nearest, those behind being at none or told apart."""
        nearest = query[0] - key[1] + 1
        return query[1] - 1 - key[0], nearest if self.bidirectional else max(0, nearest)

    def folds(self, place: Place, batch: int, query: int, keys: int, distances: int) -> bool:
        """Whether applying W to the queries takes fewer multiplications than to every distance, as it does to decode.

        A whole sequence at once, as in training, has its distances projected.
        """
        folded, projected = (sum(self.products(place, batch * query, distances, folded=f)) for f in (True, False))
        return query < keys and folded < projected

    def products(self, place: Place, queries: int, distances: int, *, folded: bool) -> tuple[int, int]:
        """The multiplications with W, of queries or else of distances, and those of queries with distances."""
        n_heads, width = place.shape
        between = queries * n_heads * distances * (place.d_model if folded else width)
        return (queries if folded else distances) * place.d_model * n_heads * width, between

    def sinusoids(self, start: int, stop: int, d_model: int, device: torch.device) -> Tensor:
        """[distance, d_model] for the distances from start down to stop, in tokens."""
        angles = self.angles(torch.arange(start, stop - 1, -1, device=device)[:, None], d_model)
        return torch.cat((angles.sin(), angles.cos()), -1)[:, :d_model]

    def angles(self, distance: Tensor, d_model: int) -> Tensor:
        """[…, pair of features] of distances […, 1], in tokens."""
        pairs = torch.arange(0, d_model, 2, device=distance.device, dtype=torch.float32)
        return distance.float() * self.base ** -(pairs / d_model)


class RelativeSinusoid(Part[RelativeSinusoidSpec]):
    r: Tensor
    bias_key: Tensor
    bias_position: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch, heads, query, key]."""
        of_keys = (self.bias_key[:, None] * content.keys).sum(-1)[:, :, None]
        own = content.q + self.bias_position[:, None]
        return (self.by_distance(own, query, key, content.hides_later) + of_keys) * content.scale

    def by_distance(self, q: Tensor, query: Tokens, key: Tokens, hides_later: bool = True) -> Tensor:
        """q·(W r) for q [batch, heads, query, head_dim]; [batch, heads, query, key], anything for later keys that are hidden."""
        n, keys = q.shape[2], key.position.shape[-1]
        in_order = hides_later and query.span and key.span and query.span[1] == key.span[1] and not key.turned
        if in_order and not self.spec.bidirectional:
            # Row i wants the distances n_keys - n + i … 0, then those of keys to come, which no mask shows: what lies in
            # memory after them will do. So the rows are read one column further apart (Dai et al. 2019, appendix B).
            every = self.products(q, keys, keys - 1, 0)
            return every if n == 1 else F.pad(every, (1, 0)).flatten(-2)[..., n:].unflatten(-1, (n, keys))
        if query.span and key.span:
            start, stop = self.spec.between(query.span, key.span)
        elif not query.leaps and not key.leaps:  # of one text: whatever row and document, new tokens are its last
            start, stop = self.spec.between((keys - n, keys), (0, keys))
        else:
            return self.by_angles(q, query, key)
        every = self.products(q, keys, start, stop)
        wanted = start - (query.position - key.position).clamp(stop, start)
        return every.gather(-1, wanted.expand(*every.shape[:-1], -1))

    def by_angles(self, q: Tensor, query: Tokens, key: Tokens) -> Tensor:
        """The same for positions of which nothing is known: sine and cosine of a difference are products of those of both.

        Its products are as wide as the stream, not as a head.
        """
        folded, width = self.folded(q), self.place.d_model
        of_sin, of_cos = F.pad(folded, (0, width % 2)).chunk(2, -1)
        at_q, at_k = (self.spec.angles(position, width) for position in (query.position, key.position.mT))
        sin, cos = at_q.sin().to(q.dtype), at_q.cos().to(q.dtype)
        turned = torch.cat((of_cos * cos + of_sin * sin, of_cos * sin - of_sin * cos), -1)
        every = turned @ torch.cat((at_k.cos(), at_k.sin()), -1).to(q.dtype).mT
        if self.spec.bidirectional:
            return every
        return torch.where(key.position > query.position, of_cos.sum(-1, keepdim=True), every)

    def folded(self, q: Tensor) -> Tensor:
        """q·W [batch, heads, query, d_model]."""
        return torch.einsum("bhqd,hdw->bhqw", q, self.r.unflatten(0, (len(self.bias_key), -1)))

    def products(self, q: Tensor, keys: int, start: int, stop: int) -> Tensor:
        """q·(W r) for the distances from start down to stop [batch, heads, query, distance]."""
        if not self.spec.folds(self.place, q.shape[0], q.shape[2], keys, start - stop + 1):
            return q @ self.distances(start, stop).mT
        folded = self.folded(q)
        if torch.is_grad_enabled() or recorded():  # a CUDA graph holds no table, which others may push out
            return folded @ self.spec.sinusoids(start, stop, self.place.d_model, q.device).to(q.dtype).mT
        # So long that tokens decoded one after the other find the table of the one before.
        length = 1 << max(start, -stop).bit_length()
        observed = getattr(q, "fake_mode", None)
        table = _table(self.spec, self.place.d_model, length, stop < 0, q.device, q.dtype, observed)
        return folded @ table[length - 1 - start : length - stop].mT

    def distances(self, start: int, stop: int) -> Tensor:
        """W r for the distances from start down to stop, as [heads, distance, head_dim]."""
        sinusoids = self.spec.sinusoids(start, stop, self.place.d_model, self.r.device).to(self.r.dtype)
        return F.linear(sinusoids, self.r).unflatten(-1, (len(self.bias_key), -1)).transpose(0, 1)


@lru_cache(maxsize=4)
def _table(
    spec: RelativeSinusoidSpec,
    d_model: int,
    length: int,
    both: bool,
    device: torch.device,
    dtype: torch.dtype,
    observed: object,
) -> Tensor:
    """The sinusoids of the distances from length - 1 down to 0, or, for `both` ways, to 1 - length.

    `observed` is None, or the pass on tensors without memory that it is for, whose tensors no other can read.
    """
    return spec.sinusoids(length - 1, 1 - length if both else 0, d_model, device).to(dtype)


def _clipped(query: Tokens, key: Tokens, farthest: int) -> Tensor:
    """The row of each distance from query to key in a table of 2 · farthest + 1."""
    return (key.position - query.position).clamp(-farthest, farthest) + farthest


class NearestSpec(PartSpec, abstract=True):
    """A vector for each distance up to `farthest` either way, one table for all heads; those farther share the last."""

    farthest: Window

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        return {"weight": Weight((2 * self.farthest + 1, place.shape[-1]), ("distance", "head_dim"), "table")}

    def cost(self, place: Place, workload: Workload) -> Cost:
        n_heads, width = place.shape
        return Cost({"distances": 2 * workload.batch * n_heads * workload.query * (2 * self.farthest + 1) * width})


class ShawKeysSpec(NearestSpec, ScoreSpec):
    """q · a, scaled as q · k is: a vector for each distance up to `farthest` either way, one for all heads (equation 5)."""

    heads_apart = True
    reads_content = True


class ShawKeys(Part[ShawKeysSpec]):
    weight: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor:
        """Scores [batch, heads, query, key]."""
        every = content.q @ (self.weight.mT * content.scale)  # [batch, heads, query, distance]
        return every.gather(-1, _clipped(query, key, self.spec.farthest).expand(*every.shape[:-1], -1))


class ShawValuesSpec(NearestSpec, ValueSpec):
    """Σ weight · a: a vector for each distance up to `farthest` either way, added to the key's value (equation 3)."""

    heads_apart = True


class ShawValues(Part[ShawValuesSpec]):
    weight: Tensor

    def forward(self, weights: Tensor, query: Tokens, key: Tokens) -> Tensor:
        """[batch, heads, query, head_dim] of weights [batch, heads, query, key]."""
        rows = _clipped(query, key, self.spec.farthest).expand(weights.shape)
        shares = weights.new_zeros(*weights.shape[:-1], len(self.weight)).scatter_add(-1, rows, weights)
        return shares.to(self.weight.dtype) @ self.weight
