"""LaMDA: Thoppilan et al. 2022, arXiv:2201.08239, section 3."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    ByRole,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
    Normal,
    RelativeBucketsSpec,
    RMSNormSpec,
)
from anyformer.spec import Count, ModelSpec, ScaleSpec, Width


def lamda(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, vocab_size: int = 32_000) -> ModelSpec:
    """Return T5's decoder alone: RMSNorm, buckets of distance shared by all layers, no biases, a gated feed-forward."""
    norm = RMSNormSpec()
    heads = GQASpec(n_heads=Count(n_heads), head_dim=Width(128))
    distances = RelativeBucketsSpec(shared="distances")
    layer = block(
        pre_norm(norm, AttentionSpec(projection=heads, mask=Causal(), scores=(distances,), scale=ScaleSpec())),
        pre_norm(norm, GatedFeedForwardSpec(d_ff=Width(d_ff), activation=GELU(form="tanh"))),
    )
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=True,
        logit_scale=ScaleSpec(power=-0.5),
        init=ByRole(table=Normal(scale=1.0), matrix=Normal(scale=1.0, fan_in_power=-0.5)),  # T5's, but for its queries
    )


PRESETS = (
    Preset(
        "lamda-137b",
        "lamda",
        lamda(n_layers=64, d_model=8192, n_heads=128, d_ff=65_536),
        "Thoppilan et al. 2022, arXiv:2201.08239, section 3; norms, scale, buckets and the tied table as in T5",
        "137B",
        "137.4B without the table of tokens, which the paper leaves out, 137.7B with it",
        "SentencePiece, 32,000",
    ),
)
