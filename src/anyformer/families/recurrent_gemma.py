"""RecurrentGemma: Griffin's gated recurrence in two of three layers, a window in the third (arXiv:2402.19427, 2404.07839)."""

from __future__ import annotations

from anyformer.families.compose import attend, changed, gated, language_model, mixing, repeat, serial, window
from anyformer.families.gemma import NORM
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, GQASpec, RGLRUSpec, RotarySpec
from anyformer.spec import Count, HeadSpec, ModelSpec, ScaleSpec, Width


def recurrent_gemma(n_layers: int, d_model: int, n_heads: int, d_ff: int, width: int) -> ModelSpec:
    """Gemma's norms, GeGLU with biases, RG-LRU of `width` in as many blocks as there are heads (arXiv:2404.07839, table 1)."""
    feed = gated(d_ff, GELU(form="tanh")).but(bias_in=True, bias_out=True)
    attention = attend(n_heads, 1, rotary=RotarySpec(fraction=0.5), mask=window(2048))
    attention = changed(attention, GQASpec, bias_output=True)
    attending = serial(NORM, attention, feed)
    recurrent = mixing(attending, RGLRUSpec(width=Width(width), n_blocks=Count(n_heads)))
    blocks = repeat((recurrent, recurrent, attending), n_layers)
    model = language_model(
        256_000, d_model, blocks, NORM, tied=True, token_scale=ScaleSpec(power=0.5, rounded="bfloat16"), context=8192
    )
    return changed(model, HeadSpec, softcap=30.0)


RECURRENT_GEMMA = Origin("recurrent-gemma", "gemma", 2024, "arXiv:2404.07839, section 2").lineage(
    "a gated linear recurrence in two of three layers, windows of 2,048 in the third",
    Preset("recurrentgemma-2b", recurrent_gemma(26, 2560, 10, 7680, 2560), "2.7B"),
    Preset("recurrentgemma-9b", recurrent_gemma(38, 4096, 16, 12_288, 4096), "8.6B", alias="recurrentgemma"),
    family="gemma",
    sizes="Botev et al. 2024, arXiv:2404.07839, table 1",
    tokenizer="SentencePiece BPE with byte fallback, 256,000",
)
