"""Attention over the encoder's output beside the layer's own tokens: one softmax over both, by the same maps of keys and values.

Merged attention: Zhang et al. 2025 (T5Gemma 2), arXiv:2512.14856, section 2. The encoder's tokens are marked ones behind the
others, seen by every token; their keys do not turn, since they stand nowhere in this text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyformer.layers.compression import beside
from anyformer.layers.context import ForwardContext, Store
from anyformer.layers.local_global import MarkedKeys, MarkedQueries
from anyformer.layers.tokens import Tokens
from anyformer.spec import KeptBeside, Place

if TYPE_CHECKING:
    from anyformer.layers.attention import Attention, AttentionSpec

MEMORY = "memory"  # the store of what is made of the encoder's output, once


def memory_misfit(spec: AttentionSpec) -> tuple[str, str] | None:
    """("memory", why it does not go with the rest of an attention); None where it does, or there is none beside."""
    if not spec.memory:
        return None
    others = (
        "indexer",
        "compressor",
        "transient",
        "convolution",
        "relative_values",
        "difference",
        "scores",
        "query_scale",
    )
    unlike = [name for name in others if getattr(spec, name)]
    unlike += ["marks"] if any(spec.mask.nested(MarkedKeys, MarkedQueries)) else []
    if spec.reads != "self" or spec.keys is not None or spec.projection.of_one or not spec.projection.takes_blocks:
        return MEMORY, "is beside a layer's own tokens, by its maps of keys and values; take GQA that reads 'self'"
    if unlike:
        return MEMORY, f"has no place for {', '.join(unlike)}, which know the tokens of one text; leave one out"
    return None


def kept_of_memory(spec: AttentionSpec, inner_place: Place) -> tuple[KeptBeside, ...]:
    """What is kept of the encoder's output."""
    return (KeptBeside(MEMORY, spec.projection.cache_shapes(inner_place), "memory"),) if spec.memory else ()


def with_memory(
    attention: Attention, stored: Mapping[str, Tensor], keys: Tokens, context: ForwardContext, store: Store
) -> tuple[Mapping[str, Tensor], Tokens]:
    """(what is stored, the tokens that it is of) with what is made of the encoder's output behind it."""
    more = store.part(MEMORY).once(lambda: attention.projection.unturned(context.given("memory")))
    return {name: torch.cat((value, more[name]), -2) for name, value in stored.items()}, keys_and_memory(keys, context)


def keys_and_memory(keys: Tokens, context: ForwardContext) -> Tokens:
    """Keys, and the encoder's tokens behind them."""
    memory = context.memory_tokens
    assert memory is not None
    n_rows = max(len(keys.position), len(memory.position))
    return context.once(f"{keys.name} and {memory.name}", lambda: beside(keys, memory, n_rows))
