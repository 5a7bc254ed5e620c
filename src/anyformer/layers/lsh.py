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
from anyformer.layers.linear import LinearSpec
from anyformer.layers.part import Part
from anyformer.layers.tokens import ForwardContext, Notes, Store, Tokens
from anyformer.spec import Caveat, Cost, Count, MixerSpec, Place, Placed, Sizes, Whole, Width, Window, Workload

HIDDEN = -1e9  # the score of a key that is not seen
ITSELF = -1e5  # of the token itself, which it takes where it sees no other (the value of trax and transformers)


class LSHAttentionSpec(MixerSpec):
    """softmax over a chunk and its neighbours of tokens sorted by their buckets; no token sees itself unless it is alone.

    Rows of at most one chunk attend as a whole. What chunks hold depends on all tokens of a row, later ones too.
    """

    counted_as: ClassVar[str | None] = "attention"

    n_heads: Count
    head_dim: Width | None = None  # None: d_model / n_heads
    n_hashes: Whole = 1  # rounds
    n_buckets: tuple[
        Whole, ...
    ] = ()  # of a round: their product; none: two for each chunk of the row, as a power of two
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

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        shape = (self.n_heads, self.width(place))
        return {"qk": shape, "value": shape}

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
        of_maps = 6 * place.d_model * self.n_heads * width * workload.tokens
        if keys <= self.chunk:
            pairs, directions = workload.query * keys, 0
        else:
            queries = workload.query if workload.past else self.padded(workload.query)
            pairs = self.n_hashes * queries * self.seen
            directions = self.n_hashes * self.padded(keys) * sum(self.buckets(self.padded(keys))) * width
        of_pairs = 2 * width * pairs * self.n_heads * workload.batch
        hashed = directions * self.n_heads * workload.batch
        terms = {"projections": of_maps, "scores": of_pairs, "values": of_pairs}
        return Cost({**terms, "hashes": hashed} if hashed else terms)

    def resized(self, to: Sizes) -> LSHAttentionSpec:
        n_heads, _, head_dim = to.heads(self.n_heads, self.n_heads, self.head_dim)
        return self.but(n_heads=Count(n_heads), head_dim=head_dim, chunk=to.field(Window, self.chunk))


class LSHAttention(Part[LSHAttentionSpec]):
    qk: Any
    v: Any
    o: Any

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, d_model] of x of that shape; no notes."""
        new = {"qk": self._heads(self.qk(x)), "value": self._heads(self.v(x))}
        stored, keys = store.extend(new), context.tokens if store.keys is None else store.keys
        dropout = context.dropout.attention if context.dropout else 0.0
        y = lsh_attention(self.spec, stored["qk"], stored["value"], keys, x.shape[1], dropout)
        return self.o(y.transpose(1, 2).flatten(2)), {}

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.spec.n_heads, -1)).transpose(1, 2)


def lsh_attention(
    spec: LSHAttentionSpec, qk: Tensor, v: Tensor, tokens: Tokens, n_new: int, dropout: float = 0.0
) -> Tensor:
    """Values [batch, heads, n_new, head_dim] of the last `n_new` of tokens with qk and v [batch, heads, token, head_dim]."""
    batch, heads, n, width = qk.shape
    k = F.rms_norm(qk, (width,), eps=1e-6) * width**-0.5
    real = torch.ones_like(tokens.position) if tokens.document is None else tokens.document
    facts = torch.stack((tokens.position.expand_as(real), real)).expand(-1, batch, -1)
    if n <= spec.chunk:
        at = torch.arange(n, device=qk.device).expand(batch, heads, 1, n)
        y, _ = _attend(
            spec, qk[:, :, None, n - n_new :], k[:, :, None], v[:, :, None], at[..., n - n_new :], at, facts, dropout
        )
        return y[:, :, 0]
    more = spec.padded(n) - n
    qk, k, v = (F.pad(each, (0, 0, 0, more)) for each in (qk, k, v))
    facts = F.pad(facts, (0, more))
    order = sorted_by_bucket(qk.detach(), facts[1], list(spec.buckets(n + more)), spec.n_hashes, spec.seed)
    place = order.argsort(-1)  # of each token in each round, among those of all rounds
    rounds, total = (batch, heads, spec.n_hashes), order.shape[-1]
    ordered = order % (n + more)
    if n_new == n:  # all chunks, each with its neighbours
        chunks = ordered.unflatten(-1, (-1, spec.chunk))
        every = range(-spec.before, spec.after + 1)
        near = torch.cat([chunks.roll(-step, 2) for step in every], 3)
        q, k, v = (_gathered(x, at) for x, at in ((qk, chunks), (k, near), (v, near)))
        y, sums = _attend(spec, q, k, v, chunks, near, facts, dropout)
        y, sums = y.flatten(2, 3), sums.flatten(2, 3)
        y = y.gather(2, place[..., None].expand_as(y)).unflatten(2, (spec.n_hashes, -1))[..., :n, :]
        sums = sums.gather(2, place).view(*rounds, -1)[..., :n]
    else:  # those of the new tokens, each by itself
        mine = place.view(*rounds, -1)[..., n - n_new : n].flatten(2)
        start = (mine // spec.chunk - spec.before) * spec.chunk
        near = (start[..., None] + torch.arange(spec.seen, device=qk.device)) % total
        own = ordered.gather(2, mine)[..., None]
        near = ordered.gather(2, near.flatten(2)).view(near.shape)
        q, k, v = (_gathered(x, at) for x, at in ((qk, own), (k, near), (v, near)))
        y, sums = _attend(spec, q, k, v, own, near, facts, dropout)
        y, sums = y.view(*rounds, n_new, width), sums.view(*rounds, n_new)
    return (y * sums.softmax(2)[..., None]).sum(2)


def _gathered(x: Tensor, at: Tensor) -> Tensor:
    """[batch, heads, chunk, of it, width] of x [batch, heads, token, width] by numbers [batch, heads, chunk, of it]."""
    return x.gather(2, at.flatten(2)[..., None].expand(-1, -1, -1, x.shape[-1])).unflatten(2, at.shape[2:])


def _attend(
    spec: LSHAttentionSpec, q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_k: Tensor, facts: Tensor, dropout: float
) -> tuple[Tensor, Tensor]:
    """(values [batch, heads, chunk, query, width], logarithms of sums [batch, heads, chunk, query]) of chunks.

    q is [batch, heads, chunk, query, width], k and v have keys instead; `of_q` and `of_k` are their tokens' numbers, and
    `facts` [2, batch, token] what these say: position and document.
    """
    scores = (q @ k.mT).float() if q.dtype in (torch.float16, torch.bfloat16) else q @ k.mT
    (at_q, in_q), (at_k, in_k) = ([_gathered_facts(fact, at) for fact in facts] for at in (of_q, of_k))
    seen = (in_q[..., :, None] == in_k[..., None, :]) & (in_k[..., None, :] > 0)
    if spec.causal:
        seen = seen & (at_q[..., :, None] >= at_k[..., None, :])
    scores = scores.masked_fill(~seen, HIDDEN).masked_fill(of_q[..., :, None] == of_k[..., None, :], ITSELF)
    sums = scores.logsumexp(-1)
    weights = F.dropout((scores - sums[..., None]).exp(), dropout).to(v.dtype)
    return weights @ v, sums


def _gathered_facts(fact: Tensor, at: Tensor) -> Tensor:
    return fact[:, None].expand(-1, at.shape[1], -1).gather(2, at.flatten(2)).view(at.shape)


@torch.library.custom_op("anyformer::sorted_by_bucket", mutates_args=())
def sorted_by_bucket(qk: Tensor, document: Tensor, buckets: Sequence[int], n_hashes: int, seed: int) -> Tensor:
    """The order of tokens in all rounds, [batch, heads, round · token]: token t of round r is number r · n + t.

    Of qk [batch, heads, n, head_dim] and documents [batch, n], padding being 0: by round, whether it is padding, bucket, token.
    """
    shape = (qk.shape[1], qk.shape[-1], n_hashes, sum(buckets) // 2)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=qk.dtype).to(qk.device)
    along = torch.einsum("bhtd,hdrf->bhrtf", qk, drawn)
    bucket, factor = torch.zeros((), dtype=torch.long, device=qk.device), 1
    for own, size in zip(along.split([size // 2 for size in buckets], -1), buckets, strict=True):
        bucket = bucket + factor * torch.cat((own, -own), -1).argmax(-1)
        factor *= size
    bucket = torch.where((document > 0)[:, None, None], bucket, factor)
    bucket = bucket + (factor + 1) * torch.arange(n_hashes, device=qk.device)[:, None]
    return bucket.flatten(2).argsort(dim=-1, stable=True)


@sorted_by_bucket.register_fake
def _(qk: Tensor, document: Tensor, buckets: Sequence[int], n_hashes: int, seed: int) -> Tensor:
    return qk.new_empty((*qk.shape[:2], n_hashes * qk.shape[2]), dtype=torch.long)
