"""Command R and R+ (Cohere 2024), Command A (arXiv:2504.00698) and R7B: parallel layers, tied and scaled logits."""

from __future__ import annotations

from anyformer.families.compose import block, changed, language_model, layered, pre_norm, repeat
from anyformer.families.mistral import windowed
from anyformer.families.preset import Preset
from anyformer.layers import (
    AttentionSpec,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    RotarySpec,
    SiLU,
)
from anyformer.spec import Count, ModelSpec, ScaleSpec, Width

NORM = LayerNormSpec(eps=1e-5, bias=False)


def cohere(
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_ff: int,
    *,
    theta: float,
    logit_scale: float,
    qk_norm: bool = False,
    context: int = 131_072,
) -> ModelSpec:
    """Return x + attention(norm(x)) + SwiGLU(norm(x)), rotary pairs side by side, no biases, a norm for each head's q and k
    where `qk_norm` says so."""
    heads = GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=Count(n_kv_heads),
        norm_query=NORM if qk_norm else None,
        norm_key=NORM if qk_norm else None,
        norm_over="heads",
        rotary=RotarySpec(theta=theta, layout="interleaved"),
    )
    feed = GatedFeedForwardSpec(d_ff=Width(d_ff), activation=SiLU())
    return language_model(
        vocab_size=256_000,
        d_model=d_model,
        blocks=repeat(block(pre_norm(NORM, AttentionSpec(projection=heads, mask=Causal()), feed)), n_layers),
        norm=NORM,
        tied=True,
        logit_scale=ScaleSpec(factor=logit_scale),
        context=context,
    )


def cohere2(n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int) -> ModelSpec:
    """Command R with three windowed layers to a full one without positions (arXiv:2504.00698, section 2)."""
    model = cohere(n_layers, d_model, n_heads, n_kv_heads, d_ff, theta=50_000.0, logit_scale=0.25)
    full = changed(model, GQASpec, rotary=None).stack.blocks[0]
    return layered(model, *[windowed(model, 4096).stack.blocks[0]] * 3, full)


R = cohere(40, 8192, 64, 64, 22_528, theta=8e6, logit_scale=0.0625)
R_0824 = cohere(40, 8192, 64, 8, 24_576, theta=4e6, logit_scale=0.0625)
R_PLUS = cohere(64, 12_288, 96, 8, 33_792, theta=75e6, logit_scale=0.8333, qk_norm=True)
RELEASE = "Cohere 2024, the release of {} and its configuration (theta and logit scale from memory)"
COMMAND_A = "Cohere 2025, arXiv:2504.00698, section 2; sizes as released"
BPE = "byte-level BPE, 255,029 padded to 256,000"

PRESETS = (
    Preset("command-r", "cohere", R, RELEASE.format("Command R"), "35B", None, BPE),
    Preset("command-r-08-2024", "cohere", R_0824, RELEASE.format("Command R 08-2024"), "32B", None, BPE),
    Preset("command-r-plus", "cohere", R_PLUS, RELEASE.format("Command R+"), "104B", None, BPE),
    Preset("command-a", "cohere2", cohere2(64, 12_288, 96, 8, 36_864), COMMAND_A, "111B", None, BPE),
    Preset(
        "command-r7b",
        "cohere2",
        cohere2(32, 4096, 32, 8, 14_336),
        RELEASE.format("Command R7B"),
        "7B",
        "8.03B, which the name leaves the embedding of 1.05B out of",
        BPE,
    ),
)
