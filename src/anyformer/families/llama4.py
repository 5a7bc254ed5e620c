"""Llama 4 (text): chunks of attention and layers without positions, experts that weigh what they read (Meta 2025)."""

from __future__ import annotations

from anyformer.families.compose import block, changed, gated, layered
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import (
    AttentionSpec,
    Causal,
    GQASpec,
    Llama3Scaling,
    LogSteps,
    MoESpec,
    RMSNormSpec,
    RotaryScalingSpec,
    RotarySpec,
    RouterSpec,
    SameBlock,
    SiLU,
)
from anyformer.spec import BlockSpec, Count, Length, ModelSpec, Window

STEPS = LogSteps(length=Length(8192), start=1)


def unturned(layer: BlockSpec, steps: LogSteps | None = STEPS) -> BlockSpec:
    """A layer that sees all and rotates nothing, whose queries grow with their positions."""
    layer = changed(layer, GQASpec, rotary=None, norm_query=None, norm_key=None)
    return changed(layer, AttentionSpec, mask=Causal(), query_scale=steps)


def llama4(
    *sizes: int,
    n_experts: int,
    d_dense: int | None = None,
    qk_norm: bool = True,
    scaling: RotaryScalingSpec | None = None,
    context: int = 131_072,
) -> ModelSpec:
    """LLaMA with neighbouring pairs and chunks, an expert chosen beside a shared one, every fourth layer without positions.

    Heads that rotate are normed without a gain, before it or after: a rotation keeps lengths. With `d_dense` every other layer,
    the first among them, is dense.
    """
    plain = llama(*sizes, head_dim=128, vocab_size=202_048, eps=1e-5, theta=5e5, scaling=scaling, context=context)
    plain = changed(plain, RotarySpec, layout="interleaved")
    plain = changed(plain, AttentionSpec, mask=Causal() & SameBlock(size=Window(8192)))
    norm = RMSNormSpec(eps=1e-5, weight=False) if qk_norm else None
    plain = changed(plain, GQASpec, norm_query=norm, norm_key=norm)
    router = RouterSpec(n_experts=Count(n_experts), top_k=1, score="sigmoid")
    sparse = changed(with_experts(plain, router, gated(sizes[3], SiLU())), MoESpec, weighs="input")
    turning = sparse.stack.blocks[0]
    pair = turning, turning
    if d_dense is not None:
        attention, feed = plain.stack.blocks[0].sublayers
        dense = feed.but(branches=(feed.branches[0].but(mixer=gated(d_dense, SiLU())),))
        pair = block(attention, dense), turning
    return layered(sparse, *pair, pair[0], unturned(pair[1]))


SCOUT = Llama3Scaling(factor=16.0, high_frequency_factor=1.0)

LLAMA4 = Origin(
    "llama4", "llama3.1", 2025, "Meta AI, April 2025, the announcement and transformers' Llama4ForCausalLM"
).lineage(
    "experts beside a shared one, chunks of 8,192 tokens, no positions in every fourth layer, neighbouring pairs",
    Preset(
        "llama4-scout",
        llama4(48, 5120, 40, 8192, 8, n_experts=16, scaling=SCOUT, context=10_485_760),
        "109B",
        "107.77B; the card counts the encoder of images too",
        alias="llama4",
    ),
    Preset(
        "llama4-maverick",
        llama4(48, 5120, 40, 8192, 8, n_experts=128, d_dense=16_384, qk_norm=False, context=1_048_576),
        "400B",
        "400.71B, which the name cuts",
    ),
    family="llama",
    sizes="Meta AI 2025, the released configurations of the text models (scaling, context and growth from memory); "
    "active parameters: 17B",
    tokenizer="byte-level BPE, 202,048",
)
