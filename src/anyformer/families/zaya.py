"""ZAYA1, experts behind attention among convolved heads, on a stream that every branch scales: arXiv:2511.17127."""

from __future__ import annotations

from anyformer.families.compose import changed, with_layers
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import (
    GELU,
    AttentionSpec,
    ChainSpec,
    ConvolvedHeadsSpec,
    GainSpec,
    GQASpec,
    LinearSpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    RouterStreamSpec,
    ShiftSpec,
    UnitLengthSpec,
)
from anyformer.spec import BranchSpec, Count, EmbeddingSpec, ModelSpec, ScaleSpec, SublayerSpec, Width

SCALED = ChainSpec(maps=(ShiftSpec(over="features"), GainSpec(over="features")))
UNIT = UnitLengthSpec(least=2**-23)


def router(n_experts: int, width: int, eps: float = 1e-5) -> RouterSpec:
    """An MLP that reads the stream of all routers before it, and may skip the experts (section 2.3)."""
    layer = LinearSpec(d_out=Width(width), bias=True)
    return RouterSpec(
        n_experts=Count(n_experts),
        top_k=1,
        n_identity=1,
        empty=True,
        correction=True,
        stream=RouterStreamSpec(width=Width(width)),
        inner=ChainSpec(maps=(RMSNormSpec(eps=eps), layer, GELU(), layer, GELU())),
    )


def first_alone(model: ModelSpec) -> ModelSpec:
    """The model whose first router reads none before it, and all others do."""
    first, *others = model.stack.blocks
    later = {id(block): changed(block, RouterStreamSpec, reads="layer") for block in others}
    return with_layers(model, (changed(first, RouterStreamSpec, reads="self"), *(later[id(block)] for block in others)))


def zaya(*sizes: int) -> ModelSpec:
    """LLaMA with convolved heads of unit length, half of which turns; a gain and a shift of what branches write and of what
    they write to; one expert of a token or none (sections 2.1 to 2.4)."""
    plain = llama(*sizes, head_dim=128, vocab_size=262_272, eps=1e-5, theta=5e6, tied=True, context=131_072)
    plain = changed(changed(plain, RotarySpec, fraction=0.5), AttentionSpec, scale=ScaleSpec(power=0.5))
    scaled = ChainSpec(maps=(UNIT, GainSpec(over="heads")))
    plain = changed(plain, GQASpec, convolved=ConvolvedHeadsSpec(), norm_query=UNIT, norm_key=scaled, norm_over="heads")
    plain = with_experts(changed(plain, EmbeddingSpec, norm=SCALED), router(16, 256))
    return first_alone(changed(changed(plain, BranchSpec, norm_out=SCALED), SublayerSpec, skip=SCALED))


ZAYA = Origin("zaya1", "qwen3-moe", 2025, "arXiv:2511.17127, section 2 (from memory)").lineage(
    "convolved heads (CCA), an MLP for a router that reads the routers before it, residual scaling, one expert or none",
    Preset("zaya1-8b", zaya(40, 2048, 8, 2048, 2), alias="zaya1"),
    family="zaya",
    sizes="Zyphra 2026, the defaults of transformers' class of ZAYA1-8B",
    tokenizer="SentencePiece (Gemma 3's), 262,272 rows",
)
