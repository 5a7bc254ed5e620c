"""Phi-3-small: blocks of keys that differ by head, gegelu, muP's constants. Abdin et al. 2024, arXiv:2404.14219, section 2."""

from __future__ import annotations

from anyformer.families.compose import attend, block, language_model, pre_norm, repeat
from anyformer.families.lineage import Misprint, Origin, Preset
from anyformer.layers import GELU, Causal, GatedFeedForwardSpec, LayerNormSpec, LocalAndVertical, Mask, RotarySpec
from anyformer.spec import BlockSpec, ModelSpec, ScaleSpec, Width, Window


def phi3_small(
    *,
    n_layers: int = 32,
    d_model: int = 4096,
    n_heads: int = 32,
    n_kv_heads: int = 8,
    head_dim: int = 128,
    d_ff: int = 14_336,
    vocab_size: int = 100_352,
    block_size: int = 64,
    near: int = 16,
) -> ModelSpec:
    """Layers that see blocks and layers that see all in turn, biases everywhere, scores divided by head_dim."""
    norm = LayerNormSpec(eps=1e-5)
    rotary, scale = RotarySpec(theta=1e6), ScaleSpec(power=-1.0)
    gegelu = GatedFeedForwardSpec(
        d_ff=Width(d_ff), activation=GELU(form="quick"), bias_in=True, bias_out=True, limit=20.0, up_offset=1.0
    )

    def layer(mask: Mask) -> BlockSpec:
        attention = attend(n_heads, n_kv_heads, head_dim, bias=True, rotary=rotary, mask=mask, scale=scale)
        return block(pre_norm(norm, attention), pre_norm(norm, gegelu))

    blocks = LocalAndVertical(size=Window(block_size), near=Window(near), stride=Window(8))
    return language_model(
        vocab_size,
        d_model,
        repeat([layer(Causal() & blocks), layer(Causal())], n_layers),
        norm,
        tied=True,
        token_scale=ScaleSpec(factor=10.0),
        logit_scale=ScaleSpec(factor=1 / 8),
        context=8192,
    )


PHI3_SMALL = Origin("phi3-small", "phi3", 2024, "arXiv:2404.14219, section 2").lineage(
    "blocks of keys that differ by head, GeGLU with bounds, muP's scales, LayerNorm",
    Preset(
        "phi3-small-8k",
        phi3_small(),
        "7B",
        "7.39B, which the paper cuts to the name; the code also sets the logits of unused tokens to -∞, which is left "
        "out",
    ),
    family="phi3_small",
    sizes="Abdin et al. 2024, arXiv:2404.14219, section 2; blocks, limit and muP's constants as released (from memory)",
    tokenizer="byte-level BPE (tiktoken), 100,352",
    misprints=(
        Misprint(
            "activation", "SwiGLU", "arXiv:2404.14219, section 2, has GeGLU; SwiGLU is that of Phi-3 mini and medium"
        ),
        Misprint(
            "norm",
            "RMSNorm",
            "the released code of Phi-3 small (from memory) has layer norms with biases; RMSNorm is that of mini and medium",
        ),
    ),
)
