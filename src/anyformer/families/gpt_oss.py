"""gpt-oss: sinks, every other layer a window, clamped experts with biases: OpenAI 2025, arXiv:2508.10925."""

from __future__ import annotations

from anyformer.families.compose import attend, block, language_model, pre_norm, repeat
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.layers import (
    GELU,
    Causal,
    GatedFeedForwardSpec,
    Mask,
    MoESpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SlidingWindow,
    YaRN,
)
from anyformer.spec import BlockSpec, Count, Length, ModelSpec, Width, Window


def gpt_oss(
    *,
    n_layers: int,
    n_experts: int,
    top_k: int = 4,
    d_model: int = 2880,
    d_ff: int = 2880,
    n_heads: int = 64,
    n_kv_heads: int = 8,
    head_dim: int = 64,
    window: int = 128,
    vocab_size: int = 201_088,
    context: int = 131_072,
) -> ModelSpec:
    """The model card's section 2.1; the experts are down((up + 1) · gate · σ(1.702 gate)), gate and up clamped."""
    norm = RMSNormSpec(eps=1e-5, cast="after")
    scaling = YaRN(factor=32.0, original_context=Length(4096), truncate=False)
    attention = attend(
        n_heads, n_kv_heads, head_dim, bias=True, rotary=RotarySpec(theta=150_000.0, scaling=scaling)
    ).but(sink=True)
    expert = GatedFeedForwardSpec(
        d_ff=Width(d_ff), activation=GELU(form="quick"), bias_in=True, bias_out=True, limit=7.0, up_offset=1.0
    )
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="softmax-of-chosen", bias=True)

    def layer(mask: Mask) -> BlockSpec:
        return block(pre_norm(norm, attention.but(mask=mask)), pre_norm(norm, MoESpec(router=router, expert=expert)))

    blocks = repeat([layer(Causal() & SlidingWindow(size=Window(window))), layer(Causal())], n_layers)
    return language_model(vocab_size, d_model, blocks, norm, tied=False, context=context)


SIZES = "OpenAI 2025, arXiv:2508.10925, table 1 and released configuration; active parameters, less the input table: {}"

GPT_OSS = Origin("gpt-oss", "gpt3", 2025, "arXiv:2508.10925, section 2").lineage(
    "experts, RMSNorm, rotary positions, grouped queries, sinks, windows in every other layer",
    Preset("gpt-oss-20b", gpt_oss(n_layers=24, n_experts=32), "20.91B", source=SIZES.format("3.61B"), alias="gpt-oss"),
    Preset("gpt-oss-120b", gpt_oss(n_layers=36, n_experts=128), "116.83B", source=SIZES.format("5.13B")),
    tokenizer="byte-level BPE (tiktoken o200k_harmony), 201,088",
    misprints=(
        Misprint(
            "activation",
            "SwiGLU",
            "arXiv:2508.10925, section 2, calls its gate x·σ(1.702 x) a swish; the same function is the quick form of GELU",
        ),
    ),
)
