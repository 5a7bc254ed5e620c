"""Qwen4-Exp, Qwen3.8-Flash-Next: gated residual streams, attention to the best blocks of keys, n-grams in one layer (2026)."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, edited, with_layers
from anyformer.families.gemma import NORM
from anyformer.families.lineage import Origin, Preset
from anyformer.families.qwen3_next import TOKENIZER, hybrid, qwen3_next_moe
from anyformer.layers import (
    AttentionSpec,
    EngramSpec,
    GatedDeltaNetSpec,
    GatedResidualSpec,
    GatedStreamsSpec,
    IndexerSpec,
    Sigmoid,
)
from anyformer.spec import BlockSpec, BranchSpec, Count, ModelSpec, SublayerSpec, Vocab, Width, Window

RANK = Width(320)  # of the streams' gates
INDEXER = IndexerSpec(
    n_heads=Count(4),
    head_dim=Width(128),
    top_k=Window(2048),
    every=Window(4),
    weighed=False,
    norm_key=NORM,
    norm_query=NORM,
)


def streamed(model: ModelSpec) -> ModelSpec:
    """The model with four gated residual streams, whose norms stand in the place of all others of the stream."""
    connection = GatedResidualSpec(rank=RANK, norm=NORM)

    def connected(block: BlockSpec) -> BlockSpec:
        bare = tuple(sublayer.but(norm_in=None) for sublayer in block.sublayers)
        return block.but(sublayers=bare, connection=connection)

    streams = GatedStreamsSpec(n=Count(4), rank=RANK, norm=NORM)
    return model.but(stack=edited(model.stack, BlockSpec, connected).but(residual=streams, norm=None))


def with_ngrams(block: BlockSpec, engram: EngramSpec) -> BlockSpec:
    """The layer of connected streams that first adds to each of them what it finds for n-grams."""
    assert isinstance(block.connection, GatedResidualSpec)
    first = SublayerSpec(branches=(BranchSpec(mixer=engram),))
    return block.but(sublayers=(first, *block.sublayers), connection=block.connection.but(whole=1))


def qwen4_exp(*sizes: int, **fields: Any) -> ModelSpec:
    """Qwen3.5's mixture so connected, whose attention takes the best blocks of four keys."""
    model = hybrid(qwen3_next_moe(*sizes, **fields), n_heads=48)
    model = changed(model, GatedDeltaNetSpec, activation=Sigmoid())
    return streamed(changed(model, AttentionSpec, indexer=INDEXER))


def qwen38_flash() -> ModelSpec:
    """Qwen3.8-Flash-Next, whose second layer has n-grams."""
    model = qwen4_exp(48, 2560, 24, 640, 2, n_experts=512, top_k=10)
    engram = EngramSpec(vocab=Vocab(model.vocab_size), end=248_044, width=Width(2560), pieces=128, norm=NORM)
    first, second, *others = model.stack.blocks
    return with_layers(model, (first, with_ngrams(second, engram), *others))


QWEN4_EXP = Origin("qwen4-exp", "qwen3.5", 2026, "Qwen team, August 2026; transformers' Qwen4ExpForCausalLM").lineage(
    "four gated residual streams, attention to the best blocks of keys, tables of n-grams in one layer",
    Preset(
        "qwen3.8-flash-next",
        qwen38_flash(),
        "125B",
        "125.7B without the tables and maps of n-grams, 51.2B, which the release counts beside",
        alias="qwen4-exp",
    ),
    sizes="Qwen team 2026, the text model of the released configuration, as those who read it print it; active parameters: 6B",
    tokenizer=TOKENIZER.format("248,320"),
)
