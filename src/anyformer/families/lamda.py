"""LaMDA: Thoppilan et al. 2022, arXiv:2201.08239, section 3."""

from __future__ import annotations

from anyformer.families.compose import attend, gated, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, ByRole, Normal, RelativeBucketsSpec, RMSNormSpec
from anyformer.spec import ModelSpec, ScaleSpec


def lamda(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """T5's decoder alone: RMSNorm, buckets of distance shared by all layers, no biases, a gated feed-forward."""
    norm, distances = RMSNormSpec(), RelativeBucketsSpec(shared="distances")
    attention = attend(n_heads, head_dim=128, scores=(distances,), scale=ScaleSpec())
    layer = serial(norm, attention, gated(d_ff, GELU(form="tanh")))
    start = ByRole(table=Normal(scale=1.0), matrix=Normal(scale=1.0, fan_in_power=-0.5))  # T5's, but for its queries
    return language_model(
        32_000, d_model, repeat(layer, n_layers), norm, tied=True, logit_scale=ScaleSpec(power=-0.5), init=start
    )


LAMDA = Origin("lamda", "t5-v1.1", 2022, "arXiv:2201.08239, section 3").lineage(
    "the decoder alone",
    Preset(
        "lamda-137b",
        lamda(64, 8192, 128, 65_536),
        "137B",
        "137.4B without the table of tokens, which the paper leaves out, 137.7B with it",
        alias="lamda",
    ),
    sizes="Thoppilan et al. 2022, arXiv:2201.08239, section 3; norms, scale, buckets and the tied table as in T5",
    tokenizer="SentencePiece, 32,000",
)
