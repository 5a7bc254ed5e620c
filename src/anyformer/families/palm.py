"""PaLM: Chowdhery et al. 2022, arXiv:2204.02311, section 2 and table 1."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    Normal,
    RotarySpec,
    SiLU,
)
from anyformer.spec import Count, ModelSpec, ScaleSpec, Width


def palm(*, n_layers: int, d_model: int, n_heads: int, vocab_size: int = 256_000) -> ModelSpec:
    """One norm, attention beside a gated feed-forward, one key/value head of 256 features, no bias anywhere."""
    norm = LayerNormSpec(bias=False)
    heads = GQASpec(n_heads=Count(n_heads), n_kv_heads=Count(1), head_dim=Width(256), rotary=RotarySpec())
    attention = AttentionSpec(projection=heads, mask=Causal())
    feed = GatedFeedForwardSpec(d_ff=Width(4 * d_model), activation=SiLU())
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(block(pre_norm(norm, attention, feed)), n_layers),
        norm=norm,
        tied=True,
        logit_scale=ScaleSpec(power=-0.5),
        init=ByRole(table=Normal(scale=1.0), matrix=Normal(scale=1.0, fan_in_power=-0.5)),
        context=2048,
    )


SOURCE = (
    "Chowdhery et al. 2022, arXiv:2204.02311, table 1; the pairs of features that rotate, and eps, are not published"
)
ERRATUM = "tables that give it RMSNorm are wrong: the paper has layer norms, without biases"
WORDS = "SentencePiece, 256,000"

PRESETS = (
    Preset("palm-8b", "palm", palm(n_layers=32, d_model=4096, n_heads=16), SOURCE, "8.63B", ERRATUM, WORDS),
    Preset("palm-62b", "palm", palm(n_layers=64, d_model=8192, n_heads=32), SOURCE, "62.50B", ERRATUM, WORDS),
    Preset(
        "palm-540b",
        "palm",
        palm(n_layers=118, d_model=18_432, n_heads=48),
        SOURCE,
        "540.35B",
        f"540.356B; {ERRATUM}",
        WORDS,
    ),
)
