"""Attention among tokens whose queries fall into one bucket. Kitaev et al. 2020, arXiv:2001.04451, section 2.

Queries are the keys too, but for their length. In each of `n_hashes` rounds tokens are sorted by a bucket of random directions
(Andoni et al. 2015, arXiv:1509.02897), cut into chunks, and each chunk attends to itself and its neighbours; rounds are joined by
the logarithms of their sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import SpecError
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.execution import exact
from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.layers.sorted_chunks import Sorted, sorted_attention
from anyformer.layers.tokens import Tokens
from anyformer.spec import Caveat, Cost, Count, HeadMap, MixerSpec, Place, Placed, Sizes, Whole, Width, Window, Workload

HIDDEN = -1e9  # the score of a key that is not seen
ITSELF = -1e5  # of the token itself, which it takes where it sees no other (the value of trax and transformers)


class LSHAttentionSpec(MixerSpec):
    """softmax over a chunk and its neighbours of tokens sorted by their buckets; no token sees itself unless it is alone.

    Rows of at most one chunk attend as a whole. What chunks hold depends on all tokens of a row, later ones too.
    """

    counted_as: ClassVar[str | None] = "attention"
    flops_as: ClassVar[str | None] = "projections"

    n_heads: Count
    head_dim: Width | None = None  # None: d_model / n_heads
    n_hashes: Whole = 1  # rounds
    # of a round: their product; none: two for each chunk of the row, as a power of two
    n_buckets: tuple[Whole, ...] = ()
    chunk: Window = Window(64)
    before: int = 1  # chunks that one sees before it
    after: int = 0
    causal: bool = True
    seed: int = 0  # of the directions, which are the same in every pass

    def __post_init__(self) -> None:
        self.require("before", self.before >= 0, "must be at least 0")
        self.require("after", self.after >= 0, "must be at least 0")
        self.require("n_buckets", not any(n % 2 for n in self.n_buckets), "must be even: a direction has two ends")

    def width(self, place: Place) -> int:
        """Features of a head. Raises SpecError where the heads do not divide d_model."""
        if self.head_dim is None and place.d_model % self.n_heads:
            raise SpecError(
                f"LSHAttention.n_heads = {self.n_heads} does not divide d_model = {place.d_model}; set head_dim"
            )
        return self.head_dim or place.d_model // self.n_heads

    def parts(self, place: Place) -> Mapping[str, Placed]:
        width = Width(self.n_heads * self.width(place))
        return {
            "qk": (LinearSpec(d_out=width, role="query", axes=("heads", "d_model")), place),
            "v": (LinearSpec(d_out=width, role="inner", axes=("heads", "d_model")), place),
            "o": (LinearSpec(role="output", axes=("d_model", "heads")), place.at(width)),
        }

    def heads(self, place: Place) -> tuple[HeadMap, ...]:
        each = self.n_heads, self.width(place)
        return HeadMap("query", "qk", *each), HeadMap("value", "v", *each), HeadMap("output", "o", *each)

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        shape = (self.n_heads, self.width(place))
        return {"qk": shape, "value": shape}

    def shows_later(self) -> bool:
        return not self.causal

    def together(self) -> str | None:
        return "sorts all tokens of a row"

    def caveats(self) -> tuple[Caveat, ...]:
        chunks = "which tokens share a chunk depends on all tokens of a row"
        return (
            Caveat("causality", f"{chunks}, later ones too"),
            Caveat("cache", f"{chunks}; those before a new one keep what they made of the chunks they were in"),
            Caveat("padding", f"{chunks}, padding included"),
            Caveat("packing", f"{chunks}, those of other documents included"),
        )

    def buckets(self, n: int) -> tuple[int, ...]:
        """The buckets of a round over n tokens, by factor."""
        if self.n_buckets:
            return self.n_buckets
        power = (2 * (n // self.chunk)).bit_length() - 1
        return (2**power,) if 2**power <= 2 * self.chunk else (2 ** (power // 2), 2 ** (power - power // 2))

    def padded(self, n: int) -> int:
        """Tokens of a row of n, filled up to whole chunks."""
        return -(-n // self.chunk) * self.chunk

    @property
    def seen(self) -> int:
        """Keys that a query is compared with in a round."""
        return (self.before + 1 + self.after) * self.chunk

    def cost(self, place: Place, workload: Workload) -> Cost:
        """The products of maps, directions, scores and values; of chunks, every pair is computed."""
        width, keys = self.width(place), workload.past + workload.query
        if keys <= self.chunk:
            pairs, directions = workload.query * keys, 0
        else:
            queries = workload.query if workload.past else self.padded(workload.query)
            pairs = self.n_hashes * queries * self.seen
            directions = self.n_hashes * self.padded(keys) * sum(self.buckets(self.padded(keys))) * width
        of_pairs = 2 * width * pairs * self.n_heads * workload.batch
        hashed = directions * self.n_heads * workload.batch
        terms = {"scores": of_pairs, "values": of_pairs, **({"hashes": hashed} if hashed else {})}
        return super().cost(place, workload) + Cost(terms)

    def resized(self, to: Sizes) -> LSHAttentionSpec:
        n_heads, _, head_dim = to.heads(self.n_heads, self.n_heads, self.head_dim)
        return to.fields(self, n_heads=n_heads, head_dim=head_dim)


class LSHAttention(Part[LSHAttentionSpec]):
    qk: Any
    v: Any
    o: Any

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; no notes."""
        new = {"qk": self._heads(self.qk(x)), "value": self._heads(self.v(x))}
        stored, keys = store.extend(new), context.tokens if store.keys is None else store.keys
        y = lsh_attention(self.spec, new["qk"], stored["qk"], stored["value"], keys, context)
        return self.o(y.transpose(1, 2).flatten(2)), {}

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.spec.n_heads, -1)).transpose(1, 2)


def lsh_attention(
    spec: LSHAttentionSpec, q: Tensor, qk: Tensor, v: Tensor, keys: Tokens, context: ForwardContext
) -> Tensor:
    """Values [batch, heads, query, head_dim] of q, of the pass's tokens, which are among `keys`.

    q is [batch, heads, query, head_dim], qk and v are [batch, heads, key, head_dim]; keys may lie in any order.
    """
    batch, _, n, width = qk.shape
    n_new = q.shape[2]
    k = F.rms_norm(qk, (width,), eps=1e-6) * width**-0.5
    of_q, of_k = _facts(context.tokens, batch), _facts(keys, batch)
    dropout = context.rates.attention
    if n <= spec.chunk:
        q, k, v, of_q, of_k = (each[:, :, None] for each in (q, k, v, of_q, of_k))
        return _attend(spec, q, k, v, of_q, of_k, dropout)[0][:, :, 0]
    more = spec.padded(n) - n
    if more:
        qk, k, v, of_k = (F.pad(each, (0, 0, 0, more)) for each in (qk, k, v, of_k))
    given = qk.detach(), of_k[:, 0, :, 1], list(spec.buckets(n + more)), spec.n_hashes, spec.seed
    order = context.decided(lambda: sorted_by_bucket(*given))
    every = range(-spec.before, spec.after + 1)
    if n_new == n and batch and qk.device.type == "cpu" and not dropout and not torch.compiler.is_compiling():
        heads, plain = qk.shape[1], keys.document is None and not more
        position, document = (fact.expand(-1, heads, -1).flatten(0, 1) for fact in of_k.unbind(-1))
        how = Sorted(
            order.flatten(0, 1), position, None if plain else document, spec.n_hashes, spec.chunk, every, spec.causal
        )
        q, k, v = (x.to(qk.dtype).flatten(0, 1) for x in (qk, k, v))
        return sorted_attention(q, k, v, how).view(qk.shape)[:, :, :n]
    place = order.argsort(-1)  # of each token in each round, among those of all rounds
    ordered = order % (n + more)
    if n_new == n:  # all chunks, each with its neighbours
        chunks = ordered.unflatten(-1, (-1, spec.chunk))
        near = torch.cat([chunks.roll(-step, 2) for step in every], 3)
        q, of_q = (_gathered(x, chunks) for x in (qk, of_k))
    else:  # those of the new tokens, each by itself
        among = _same(of_q, of_k).byte().argmax(-1)  # [batch, 1, query], where new tokens are
        rounds = place.unflatten(2, (spec.n_hashes, -1))
        mine = rounds.gather(3, among[:, :, None].expand(*rounds.shape[:3], -1)).flatten(2)
        start = (mine // spec.chunk - spec.before) * spec.chunk
        near = (start[..., None] + torch.arange(spec.seen, device=qk.device)) % order.shape[-1]
        near = ordered.gather(2, near.flatten(2)).view(near.shape)
        q, of_q = (x.repeat(1, 1, spec.n_hashes, 1)[..., None, :] for x in (q, of_q))
    k, v, of_k = (_gathered(x, near) for x in (k, v, of_k))
    y, sums = (each.flatten(2, 3) for each in _attend(spec, q, k, v, of_q, of_k, dropout))
    if n_new == n:
        y, sums = y.gather(2, place[..., None].expand_as(y)), sums.gather(2, place)
    y, sums = (each.unflatten(2, (spec.n_hashes, -1))[:, :, :, :n_new] for each in (y, sums))
    return (y * sums.softmax(2)[..., None]).sum(2).to(v.dtype)


def _facts(tokens: Tokens, batch: int) -> Tensor:
    """Position and document [batch, 1, token, 2]."""
    document = tokens.documents
    return torch.stack((tokens.position.expand_as(document), document), -1).expand(batch, -1, -1)[:, None]


def _same(of_q: Tensor, of_k: Tensor) -> Tensor:
    """Whether a query [..., query, 2] and a key [..., key, 2] are of one token."""
    return (of_q[..., :, None, :] == of_k[..., None, :, :]).all(-1)


def _gathered(x: Tensor, at: Tensor) -> Tensor:
    """[batch, heads, chunk, of it, width] of x [batch, heads or 1, token, width] by numbers [batch, heads, chunk, of it]."""
    x = x.expand(-1, at.shape[1], -1, -1)
    return x.gather(2, at.flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])).unflatten(2, at.shape[2:])


def _attend(
    spec: LSHAttentionSpec, q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_k: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """(values [batch, heads, chunk, query, width], logarithms of sums [batch, heads, chunk, query]) of chunks.

    q is [batch, heads, chunk, query, width], k and v have keys instead; `of_q` and `of_k` [batch, heads or 1, chunk, query or
    key, 2] are their positions and documents.
    """
    scores = exact(q @ k.mT)
    (at_q, in_q), (at_k, in_k) = (each.unbind(-1) for each in (of_q[..., :, None, :], of_k[..., None, :, :]))
    seen = (in_q == in_k) & (in_k > 0)
    if spec.causal:
        seen = seen & (at_q >= at_k)
    scores = scores.masked_fill(~seen, HIDDEN).masked_fill((at_q == at_k) & (in_q == in_k), ITSELF)
    # By softmax, not by the sums: those of a token that sees itself alone are so far from 0 that they have no digits to spare.
    weights = F.dropout(scores.softmax(-1), dropout).to(v.dtype)
    return weights @ v, scores.logsumexp(-1)


@torch.library.custom_op("anyformer::sorted_by_bucket", mutates_args=())
def sorted_by_bucket(qk: Tensor, document: Tensor, buckets: Sequence[int], n_hashes: int, seed: int) -> Tensor:
    """The order of tokens in all rounds, [batch, heads, round · token]: token t of round r is number r · n + t.

    Of qk [batch, heads, n, head_dim] and documents [batch, n], padding being 0: by round, whether it is padding, bucket, token.
    """
    shape = (qk.shape[1], qk.shape[-1], n_hashes, sum(buckets) // 2)
    # In float32 whatever the model's dtype, in which other numbers would be drawn: in float64 it is the same model.
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).to(qk)
    along = torch.einsum("bhtd,hdrf->bhrtf", qk, drawn)
    bucket, factor = torch.zeros((), dtype=torch.long, device=qk.device), 1
    for own, size in zip(along.split([size // 2 for size in buckets], -1), buckets, strict=True):
        (ahead, at), (behind, opposite) = own.max(-1), own.min(-1)
        bucket = bucket + factor * torch.where(ahead >= -behind, at, opposite + size // 2)
        factor *= size
    bucket = torch.where((document > 0)[:, None, None], bucket, factor)
    bucket = bucket + (factor + 1) * torch.arange(n_hashes, device=qk.device)[:, None]
    return bucket.flatten(2).argsort(dim=-1, stable=True)


@sorted_by_bucket.register_fake
def _(qk: Tensor, document: Tensor, buckets: Sequence[int], n_hashes: int, seed: int) -> Tensor:
    return qk.new_empty((*qk.shape[:2], n_hashes * qk.shape[2]), dtype=torch.long)
