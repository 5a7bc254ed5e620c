"""Command R and R+ (Cohere 2024), Command A (arXiv:2504.00698) and R7B: parallel layers, tied and scaled logits."""

from __future__ import annotations

from anyformer.families.compose import block, changed, gated, language_model, layered, pre_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.families.mistral import windowed
from anyformer.layers import AttentionSpec, Causal, GQASpec, LayerNormSpec, RotarySpec, SiLU
from anyformer.spec import Count, ModelSpec, ScaleSpec

NORM = LayerNormSpec(eps=1e-5, bias=False)


def cohere(
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_kv_heads: int,
    *,
    theta: float,
    logit_scale: float,
    qk_norm: bool = False,
    context: int = 131_072,
) -> ModelSpec:
    """X + attention(norm(x)) + SwiGLU(norm(x)), rotary pairs side by side, no biases, a norm for each head's q and k
    where `qk_norm` says so."""
    heads = GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=Count(n_kv_heads),
        norm_query=NORM if qk_norm else None,
        norm_key=NORM if qk_norm else None,
        norm_over="heads",
        rotary=RotarySpec(theta=theta, layout="interleaved"),
    )
    attention = AttentionSpec(projection=heads, mask=Causal())
    return language_model(
        256_000,
        d_model,
        repeat(block(pre_norm(NORM, attention, gated(d_ff, SiLU()))), n_layers),
        NORM,
        tied=True,
        logit_scale=ScaleSpec(factor=logit_scale),
        context=context,
    )


def cohere2(n_layers: int, d_model: int, n_heads: int, d_ff: int, n_kv_heads: int) -> ModelSpec:
    """Command R with three windowed layers to a full one without positions (arXiv:2504.00698, section 2)."""
    model = cohere(n_layers, d_model, n_heads, d_ff, n_kv_heads, theta=50_000.0, logit_scale=0.25)
    full = changed(model, GQASpec, rotary=None).stack.blocks[0]
    return layered(model, *[windowed(model, 4096).stack.blocks[0]] * 3, full)


RELEASE = "Cohere 2024, the release of {} and its configuration (theta and logit scale from memory)"
BPE = "byte-level BPE, 255,029 padded to 256,000"
R_PLUS = cohere(64, 12_288, 96, 33_792, 8, theta=75e6, logit_scale=0.8333, qk_norm=True)

COMMAND_R = Origin("command-r", "palm", 2024, "the release of Command R, from memory").lineage(
    "all heads have keys and values, 131,072 tokens",
    Preset(
        "command-r",
        cohere(40, 8192, 64, 22_528, 64, theta=8e6, logit_scale=0.0625),
        "35B",
        source=RELEASE.format("Command R"),
    ),
    Preset(
        "command-r-08-2024",
        cohere(40, 8192, 64, 24_576, 8, theta=4e6, logit_scale=0.0625),
        "32B",
        source=RELEASE.format("Command R 08-2024"),
    ),
    known="command-r",
    family="cohere",
    tokenizer=BPE,
)
COMMAND_R_PLUS = Origin("command-r-plus", "command-r", 2024, "the release of Command R+, from memory").lineage(
    "QK-norm, grouped queries",
    Preset("command-r-plus", R_PLUS, "104B"),
    family="cohere",
    sizes=RELEASE.format("Command R+"),
    tokenizer=BPE,
)
COMMAND_A = Origin("command-a", "command-r", 2025, "arXiv:2504.00698, section 2").lineage(
    "three windows to a full layer without positions",
    Preset("command-a", cohere2(64, 12_288, 96, 36_864, 8), "111B"),
    Preset(
        "command-r7b",
        cohere2(32, 4096, 32, 14_336, 8),
        "7B",
        "8.03B, which the name leaves the embedding of 1.05B out of",
        source=RELEASE.format("Command R7B"),
    ),
    known="command-a",
    family="cohere2",
    sizes="Cohere 2025, arXiv:2504.00698, section 2; sizes as released",
    tokenizer=BPE,
)
