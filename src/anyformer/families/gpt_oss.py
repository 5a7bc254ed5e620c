"""gpt-oss: sinks, every other layer a window, clamped experts with biases: OpenAI 2025, arXiv:2508.10925."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
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
    projection = GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=Count(n_kv_heads),
        head_dim=Width(head_dim),
        bias_query=True,
        bias_key=True,
        bias_value=True,
        bias_output=True,
        rotary=RotarySpec(theta=150_000.0, scaling=scaling),
    )
    expert = GatedFeedForwardSpec(
        d_ff=Width(d_ff), activation=GELU(form="quick"), bias_in=True, bias_out=True, limit=7.0, up_offset=1.0
    )
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="softmax-of-chosen", bias=True)

    def layer(mask: Mask) -> BlockSpec:
        attend = AttentionSpec(projection=projection, mask=mask, sink=True)
        return block(pre_norm(norm, attend), pre_norm(norm, MoESpec(router=router, expert=expert)))

    blocks = repeat([layer(Causal() & SlidingWindow(size=Window(window))), layer(Causal())], n_layers)
    return language_model(vocab_size=vocab_size, d_model=d_model, blocks=blocks, norm=norm, tied=False, context=context)


SOURCE = (
    "OpenAI 2025, arXiv:2508.10925, table 1 and released configuration; active parameters, less the input table: {}"
)
TOKENS = "byte-level BPE (tiktoken o200k_harmony), 201,088"

PRESETS = (
    Preset(
        "gpt-oss-20b", "gpt-oss", gpt_oss(n_layers=24, n_experts=32), SOURCE.format("3.61B"), "20.91B", None, TOKENS
    ),
    Preset(
        "gpt-oss-120b", "gpt-oss", gpt_oss(n_layers=36, n_experts=128), SOURCE.format("5.13B"), "116.83B", None, TOKENS
    ),
)
