"""Transient global tokens: sums of blocks beside the keys that a mask shows. Guo et al. 2021, arXiv:2112.07916, section 3.1.2.

They are made anew in each layer, of what it reads, and every token sees all of them: its text's before it and after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.layers.compression import beside
from anyformer.layers.context import ForwardContext
from anyformer.layers.execution import exact, exact_dtype
from anyformer.layers.norm import RMSNormSpec
from anyformer.layers.part import Part
from anyformer.layers.scores import RelativeBuckets, RelativeBucketsSpec
from anyformer.layers.tokens import Tokens, flagged_first
from anyformer.spec import MapSpec, PartSpec, Place, Placed, Sizes, Window

if TYPE_CHECKING:
    from anyformer.layers.attention import Attention, AttentionSpec


class TransientGlobalSpec(PartSpec):
    """norm(Σ x) over each block of `every` tokens, by positions; the last of a text has those behind it too.

    A text of fewer tokens has none. The layer's own maps make a key and a value of each; its place's shape is (n_heads, width).
    """

    every: Window
    norm: MapSpec | None = RMSNormSpec(eps=1e-6)
    # of the distance in blocks, in place of what the attention's own scores add
    scores: RelativeBucketsSpec | None = RelativeBucketsSpec(bidirectional=True)

    def parts(self, place: Place) -> Mapping[str, Placed]:
        norm = self.norm and (self.norm, place.at(place.d_model))
        return {"norm": norm, "scores": self.scores and (self.scores, place)}

    def resized(self, to: Sizes) -> TransientGlobalSpec:
        """Blocks of a power of two stay so."""
        small = super().resized(to)
        return small if self.every & (self.every - 1) else small.but(every=Window(1 << small.every.bit_length() - 1))

    def misfit(self, attention: AttentionSpec) -> tuple[str, str] | None:
        """("transient", why it does not go with this attention); None where it does."""
        projection = attention.projection
        of_others = attention.reads != "self" or attention.keys is not None or projection.of_one
        unlike = [score.kind for score in attention.scores if score.reads_content]
        unlike += [attention.relative_values.kind] if attention.relative_values else []
        if attention.compressor or attention.indexer:
            why = "are beside all keys of tokens, and compressor or indexer say otherwise; leave one out"
        elif of_others or not projection.takes_blocks or getattr(projection, "rotary", None):
            why = "have keys and values by the layer's own maps, which do not turn; take GQA without rotary, on its own tokens"
        elif unlike:
            why = f"have no place for {', '.join(unlike)}; leave one out"
        else:
            return None
        return "transient", why


class Summed(NamedTuple):
    """The blocks of a pass."""

    blocks: Tokens  # [batch or 1, block], the facts of each one's last token; of document 0: the row has no more
    of: Tensor  # [batch or 1, token], the block that each token is summed into; their number: none


def summed(tokens: Tokens, every: int) -> Summed:
    """The blocks of `every` tokens. How many there are follows from shapes."""
    position, document = tokens.position, tokens.documents
    n = tokens.n // every if tokens.span and tokens.span[0] == 0 else -(-tokens.n // every)
    ends = (position % every == every - 1) & (document > 0)
    last = flagged_first(ends)[:, :n]

    def of_blocks(fact: Tensor) -> Tensor:
        return fact.expand(len(last), -1).gather(1, last)

    at, whose = of_blocks(position), of_blocks(document * ends)
    number = torch.minimum(position // every, (tokens.ends + 1) // every - 1)
    same = (number[..., None] == (at // every)[:, None]) & (document[..., None] == whose[:, None])
    same &= (number >= 0)[..., None] & (whose > 0)[:, None]
    of = torch.where(same.any(-1), same.to(torch.int8).argmax(-1), n) if n else torch.zeros_like(position)
    return Summed(Tokens(at, whose, name=f"sums of {every}"), of)


class TransientGlobal(Part[TransientGlobalSpec]):
    norm: nn.Module
    scores: RelativeBuckets | None

    def forward(self, x: Tensor, of: Tensor, n: int) -> Tensor:
        """The n blocks [batch, block, d_model] of x [batch, token, d_model]; `of` says which each token is summed into."""
        sums = x.new_zeros(len(x), n + 1, x.shape[-1], dtype=exact_dtype(x))
        return self.norm(sums.scatter_add(1, of[..., None].expand(x.shape), exact(x))[:, :n].to(x.dtype))

    def added(self, own: Tensor | None, query: Tokens, key: Tokens) -> Tensor | None:
        """Scores [batch or 1, heads, query, key]: `own` for keys of tokens, those of distances in blocks for marked keys."""
        if self.scores is None:
            return own if own is None else own.masked_fill(key.marked, 0.0)
        every = self.spec.every
        last = (key.ends + 1) // every - 1
        distance = key.position // every - torch.minimum(query.position // every, last)
        return torch.where(key.marked, self.scores.of_distances(distance), 0.0 if own is None else own)


def keys_beside(spec: TransientGlobalSpec, keys: Tokens, context: ForwardContext) -> Tokens:
    """Keys, and the blocks of the pass behind them."""
    blocks = _of_pass(spec, context).blocks
    n_rows = max(len(keys.position), len(blocks.position))
    return context.once(f"{keys.name} and {blocks.name}", lambda: beside(keys, blocks, n_rows)) if blocks.n else keys


def with_sums(
    attention: Attention, x: Tensor, stored: Mapping[str, Tensor], keys: Tokens, context: ForwardContext
) -> tuple[Mapping[str, Tensor], Tokens]:
    """(what is stored, the tokens that it is of) of keys and the blocks of x [batch, token, d_model] behind them."""
    transient = attention.transient
    assert transient is not None
    blocks, of = _of_pass(transient.spec, context)
    if not blocks.n:
        return stored, keys
    new = attention.projection.store(transient(x, of, blocks.n), context)
    stored = {name: torch.cat((value, new[name]), -2) for name, value in stored.items()}
    return stored, keys_beside(transient.spec, keys, context)


def _of_pass(spec: TransientGlobalSpec, context: ForwardContext) -> Summed:
    return context.once(f"sums of {spec.every}", lambda: summed(context.tokens, spec.every))
