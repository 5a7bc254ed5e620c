"""Nemotron-4: Parmar et al. 2024, arXiv:2402.16819; Adler et al. 2024, arXiv:2406.11704."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    Normal,
    ReLU2,
    RotarySpec,
)
from anyformer.spec import Count, ModelSpec, Width

DEVIATION = Normal(scale=0.0134)  # the released configuration's


def nemotron(n_layers: int, d_model: int, n_heads: int, n_kv_heads: int) -> ModelSpec:
    """Pre-norm LayerNorm around 1, half of each head rotating, squared ReLU, no biases (2402.16819, section 2)."""
    norm = LayerNormSpec(eps=1e-5, weight_offset=1.0)
    heads = GQASpec(n_heads=Count(n_heads), n_kv_heads=Count(n_kv_heads), rotary=RotarySpec(fraction=0.5))
    feed = FeedForwardSpec(d_ff=Width(4 * d_model), activation=ReLU2(), bias_in=False, bias_out=False)
    layer = block(pre_norm(norm, AttentionSpec(projection=heads, mask=Causal())), pre_norm(norm, feed))
    return language_model(
        vocab_size=256_000,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=False,
        init=ByRole(table=DEVIATION, matrix=DEVIATION),
        context=4096,
    )


BPE = "SentencePiece BPE with byte fallback, 256,000"

PRESETS = (
    Preset(
        "nemotron4-15b",
        "nemotron",
        nemotron(32, 6144, 48, 8),
        "Parmar et al. 2024, arXiv:2402.16819, table 1 (3.2B in the tables and 12.5B elsewhere)",
        "15.6B",
        "the paper's 3.2B + 12.5B are rounded each",
        BPE,
    ),
    Preset(
        "nemotron4-340b",
        "nemotron",
        nemotron(96, 18_432, 96, 8),
        "Adler et al. 2024, arXiv:2406.11704, table 1 (9.4B in the tables and 331.6B elsewhere)",
        "341.0B",
        None,
        BPE,
    ),
)
