"""Attention over blocks of past tokens beside the keys that its mask shows: one softmax over both (`compression` makes them).

Blocks are marked tokens behind the others, seen by who comes after their last token; an indexer, where there is one, chooses
among them. What is made of them, and what the next are made of, lie in stores beside attention's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.choice import choice, index_rotation
from anyformer.layers.compression import COUNT, EndedBlocks, beside, blocks_of
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.indexer import INDEX
from anyformer.layers.local_global import MarkedKeys, MarkedQueries
from anyformer.layers.mask import Causal, Mask
from anyformer.layers.tokens import Tokens
from anyformer.spec import KeptBeside, Place

if TYPE_CHECKING:
    from anyformer.layers.attention import Attention, AttentionSpec

WAITING, BLOCKS = "waiting", "blocks"  # the stores of what the next blocks are made of, and of what was made
# By which blocks are seen; made here, since a compiler follows no specification that is made in a pass.
CAUSAL = Causal()
KEY = "key"  # what attention's own waits as


def misfit(spec: AttentionSpec) -> tuple[str, str] | None:
    """(the field, why) that blocks do not go with; None where they do, or there are none."""
    if spec.transient is not None:
        return spec.transient.misfit(spec)
    own, of_index = spec.compressor, spec.indexer and spec.indexer.compressor
    if spec.indexer and (own and own.every) != (of_index and of_index.every):
        return "indexer", "chooses among other keys than there are; give it and attention compressors of one every"
    if own is None:
        return None
    marks = any(spec.mask.nested(MarkedKeys, MarkedQueries))
    other = "scores" if spec.scores or spec.relative_values else "marks" if marks else None
    if spec.reads != "self" or spec.keys is not None or other:
        said = other or "keys of other layers"
        return "compressor", f"makes blocks of a layer's own tokens, beside which there are no {said}; leave one out"
    if not spec.projection.takes_blocks:
        return "compressor", f"makes keys that turn, and values, and {spec.projection.kind} stores others"
    return None


def seen_of(spec: AttentionSpec) -> Mask:
    """Which keys a query sees, those that are beside its own text's marked."""
    if spec.compressor is None and spec.transient is None and not spec.memory:
        return spec.mask
    return (spec.mask & ~MarkedKeys()) | (CAUSAL & MarkedKeys() if spec.compressor else MarkedKeys())


def place_of_blocks(spec: AttentionSpec, inner_place: Place) -> Place:
    """Where a compressor stands: it makes all that is stored of a token, side by side."""
    return inner_place.at(sum(map(math.prod, spec.projection.cache_shapes(inner_place).values())))


def kept_of_blocks(spec: AttentionSpec, inner_place: Place) -> tuple[KeptBeside, ...]:
    """What is kept of blocks, and of the tokens that the next are made of."""
    if spec.compressor is None:
        return ()
    made = {**spec.projection.cache_shapes(inner_place)}
    waiting = {COUNT: (1,), **spec.compressor.state_shapes(place_of_blocks(spec, inner_place), KEY)}
    if (indexer := spec.own_indexer) and indexer.compressor:
        made[INDEX] = (indexer.head_dim,)
        waiting |= indexer.compressor.state_shapes(inner_place.at(indexer.head_dim), INDEX)
    return KeptBeside(BLOCKS, made, every=spec.compressor.every), KeptBeside(WAITING, waiting, "state")


def with_blocks(
    attention: Attention,
    narrow: Tensor,
    x: Tensor,
    stored: Mapping[str, Tensor],
    keys: Tokens,
    context: ForwardContext,
    store: Store,
) -> tuple[Mapping[str, Tensor], Tokens, Tensor | None]:
    """(what is stored, the tokens that it is of, what hides those that are not chosen [batch, 1, query, key]), the blocks behind.

    `stored` and `keys` are those of attention's own store; `narrow` and x [batch, token, …] what it makes queries of, and reads.
    """
    compressor, indexer = attention.compressor, attention.indexer
    assert compressor is not None
    every, waiting, held = compressor.spec.every, store.part(WAITING), store.part(BLOCKS)

    def ending() -> EndedBlocks:
        found = blocks_of(context, waiting, every)
        held.put(found.tokens)
        return found

    blocks: EndedBlocks = context.once(f"blocks of {every}", ending)
    made, state = compressor(x, blocks, waiting.state, KEY)
    new = dict(attention.projection.of_blocks(made, blocks.first(every)))
    if indexer is not None:
        new[INDEX], more = indexer.block_keys(x, index_rotation(attention), blocks, waiting.state)
        state = {**state, **more}
    if waiting.state is not None:
        waiting.keep({**state, COUNT: blocks.so_far.expand(len(x), 1).to(torch.float32)})
    seen, tokens = held.extend(new), held.keys or blocks.tokens
    if not tokens.n:
        return stored, keys, None
    chosen = choice(attention, narrow, x, seen, tokens, context, CAUSAL)
    stored = {name: torch.cat((value, seen[name]), -2) for name, value in stored.items()}
    both = context.once(f"{keys.name} and {tokens.name}", lambda: beside(keys, tokens, len(x)))
    return stored, both, chosen if chosen is None else F.pad(chosen, (keys.n, 0))
