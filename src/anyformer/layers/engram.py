"""Engram: what is known of a token and the few before it, looked up by hashes of n-grams in tables, gated by the stream.

Cheng et al. 2026, arXiv:2601.07372 (from memory), section 2; in Qwen3.8-Flash-Next the per-layer embedding of one layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count, islice
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.layers.activation import SiLU
from anyformer.layers.causal_convolution import CausalConvolution, CausalConvolutionSpec
from anyformer.layers.context import ForwardContext, Notes, Store
from anyformer.layers.embedding import Table
from anyformer.layers.execution import constant
from anyformer.layers.linear import Linear, LinearSpec
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.recurrence import Recurrent, RecurrentSpec, Steps, steps_of
from anyformer.spec import Few, MapSpec, Place, Placed, Sizes, TableSpec, Vocab, Width

LEAST = 1e-6  # that a product counts as, before its root
MOST_PRIMES = 4096  # that are looked for


class EngramSpec(RecurrentSpec):
    """v + silu(convolution(norm(v))), v = σ(√ of norm(key) · norm(x) / √d_model, signed) · value: both of what tables hold.

    For each length of an n-gram, from 2, there are `n_tables`, each of as many rows as a prime of its own. The row is its hash:
    its ids, each times a number, joined by exclusive or. An n-gram begins with its document, and behind a token that ends a text:
    `end` stands for what is before. The convolution sees tokens as far apart as the longest n-gram is long. Of streams side by
    side each has a key, norms and a convolution of its own.
    """

    counted_as: ClassVar[str | None] = "n-gram embeddings"
    flops_as: ClassVar[str | None] = "n-grams"
    takes_streams: ClassVar[bool] = True

    vocab: Vocab  # rows of the tokens' table: ids are below it
    end: int  # the id of the token that ends a text
    width: Width  # of the rows of all tables side by side
    rows: Vocab = Vocab(20_000_000)  # the least that a table has
    longest: Few = 3  # tokens of the longest n-gram
    n_tables: Few = 8
    multiple: Few = 128  # that the rows of all tables are padded to one of
    seed: int = 1234  # of the numbers that ids are multiplied by
    number: int = 0  # among those of a stack: which primes are its own, and which numbers
    size: Few = 4  # tokens that the convolution sees, the own among them
    pieces: Few = 1  # that files hold the tables in, one below the other
    norm: MapSpec | None = RMSNormSpec()

    def __post_init__(self) -> None:
        self.require("longest", self.longest > 1, "makes no n-gram; give 2 or more")
        said = f"must be a multiple of the {self.all_tables} tables"
        self.require("width", self.width % self.all_tables == 0, said)
        primes = self.all_tables * (self.number + 1)
        self.require("number", primes <= MOST_PRIMES, f"asks for {primes:,} primes; {MOST_PRIMES:,} are the most")

    @property
    def all_tables(self) -> int:
        """How many tables there are, of all lengths."""
        return (self.longest - 1) * self.n_tables

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of each table."""
        return _primes(self.rows, self.all_tables * self.number, self.all_tables)

    @property
    def factors(self) -> tuple[int, ...]:
        """What an n-gram's ids are multiplied by, the last of them first: odd, and no product is beyond 63 bits."""
        half = max(1, (2**63 - 1) // self.vocab // 2)
        start = self.seed + 10_007 * self.number
        return tuple(2 * (_mixed(start + (i + 1) * GOLDEN) % half) + 1 for i in range(self.longest))

    @property
    def all_rows(self) -> int:
        """The rows of all tables, and those that pad them."""
        return self.multiple * math.ceil(sum(self.sizes) / self.multiple)

    @property
    def convolution(self) -> CausalConvolutionSpec:
        """Of what the tables say of the last tokens."""
        return CausalConvolutionSpec(size=self.size, dilation=self.longest, activation=SiLU())

    def parts(self, place: Place) -> Mapping[str, Placed]:
        n, d_model = place.n_streams, place.d_model
        each, found = Width(self.width // self.all_tables), place.at(self.width)
        keys = LinearSpec(d_out=Width(n * d_model), axes=("d_model", "d_ngram"))
        norm = self.norm and (self.norm, place.at(n, d_model))
        return {
            "table": (TableSpec(rows=Vocab(self.all_rows), width=each), place.at(each)),
            "key": (keys, found),
            "value": (LinearSpec(d_out=Width(d_model), axes=("d_model", "d_ngram")), found),
            **dict.fromkeys(("norm_key", "norm_query", "norm_value"), norm),
            "local": (self.convolution, place.at(n * d_model)),
        }

    def cache_shapes(self, place: Place) -> Mapping[str, tuple[int, ...]]:
        return {"tokens": (self.longest - 1,), "tail": (self.convolution.tail, place.n_streams * place.d_model)}

    def resized(self, to: Sizes) -> EngramSpec:
        vocab, n = to.vocab(self.vocab), self.all_tables
        width = n * max(1, round(to.width(self.width) / n))
        return to.fields(self, end=min(self.end, vocab - 1), rows=to.count(self.rows), width=width)


class Engram(Recurrent[EngramSpec]):
    table: Table
    key: Linear
    value: Linear
    norm_key: nn.Module
    norm_query: nn.Module
    norm_value: nn.Module
    local: CausalConvolution

    def __init__(self, spec: EngramSpec, place: Place) -> None:
        super().__init__(spec, place)
        self.factors, self.sizes = spec.factors, spec.sizes
        self.starts = tuple(sum(self.sizes[:i]) for i in range(spec.all_tables))

    def forward(self, x: Tensor, context: ForwardContext, store: Store) -> tuple[Tensor, Notes]:
        """[batch, token, n · d_model] of x of that shape, n streams side by side, and the pass's ids; no notes."""
        assert context.ids is not None
        steps, state = steps_of(context, store), store.state
        ids = steps.taken(context.ids[..., None])[..., 0].long()
        rows, tokens = self._rows(ids, steps, (state or {}).get("tokens"))
        y, tail = self._read(self.table(rows).flatten(-2), steps.taken(x), steps, (state or {}).get("tail"))
        if state is not None:
            store.keep({"tokens": tokens, "tail": tail})
        return steps.given(y), {}

    def _rows(self, ids: Tensor, steps: Steps, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """(each table's row [batch, step, table] for ids [batch, step], the last ids for the next call, in float32)."""
        spec, last, n = self.spec, self.spec.longest - 1, ids.shape[1]
        begun = ids.new_full((len(ids), last), spec.end) if before is None else before.long()
        wide = torch.cat((begun, ids), 1)
        pieces = None if steps.piece is None else torch.nn.functional.pad(steps.piece, (last, 0))
        factors = constant(self.factors, ids, torch.long)
        hashed, tap = ids * factors[0], None
        hashes: list[Tensor] = []
        for back in range(1, last + 1):
            at = last - back
            new = wide[:, at : at + n]
            if pieces is not None:
                new = torch.where(pieces[:, at : at + n] == pieces[:, last:], new, spec.end)
            tap = new if tap is None else torch.where(tap == spec.end, tap, new)
            hashed = hashed ^ (tap * factors[back])
            hashes.append(hashed)
        each = torch.stack(hashes, -1).repeat_interleave(spec.n_tables, -1)
        rows = each.remainder(constant(self.sizes, ids, torch.long)) + constant(self.starts, ids, torch.long)
        return rows, steps.last(wide, last, spec.end).float()

    def _read(self, found: Tensor, x: Tensor, steps: Steps, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        """(y [batch, step, n · d_model], the tail) of what is found [batch, step, width] and of streams x."""
        key, query = self._normed(self.norm_key, self.key(found)), self._normed(self.norm_query, x)
        says = (key * query).sum(-1, keepdim=True) * self.place.d_model**-0.5
        gate = (says.abs().clamp(min=LEAST).sqrt() * says.sign()).sigmoid()
        gated = (gate * self.value(found)[..., None, :]).flatten(-2)
        y, after = self.local(self._normed(self.norm_value, gated).flatten(-2), steps, tail)
        return gated + y, after

    def _normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        """The streams [batch, step, n, d_model], each normed, of x that has them side by side."""
        return norm(x.unflatten(-1, (self.place.n_streams, -1)))


GOLDEN = 0x9E3779B97F4A7C15  # 2^64 by the golden ratio, and the steps of SplitMix64 (Steele et al. 2014)
BITS = 2**64 - 1


def _mixed(value: int) -> int:
    """SplitMix64's number for a state."""
    value = (value + GOLDEN) & BITS
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & BITS
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & BITS
    return value ^ (value >> 31)


@lru_cache(maxsize=64)
def _primes(least: int, skipped: int, n: int) -> tuple[int, ...]:
    """N primes in turn, those from `least` on without the first few."""

    def found() -> Iterator[int]:
        return (i for i in count(least) if i > 1 and all(i % by for by in range(2, math.isqrt(i) + 1)))

    return tuple(islice(found(), skipped, skipped + n))
