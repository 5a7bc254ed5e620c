"""BLOOM: Le Scao et al. 2022, arXiv:2211.05100."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm, repeat, with_biases
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    ALiBiSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
)
from anyformer.spec import Count, ModelSpec, Width


def bloom(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    vocab_size: int = 250_880,
    eps: float = 1e-5,
    tied: bool = True,
    context: int = 2048,
) -> ModelSpec:
    """ALiBi instead of positions, a norm after the embedding, sublayers in turn (section 3.2 and figure 5)."""
    norm = LayerNormSpec(eps=eps)
    heads = with_biases(GQASpec(n_heads=Count(n_heads)), True, True)
    layer = block(
        pre_norm(norm, AttentionSpec(projection=heads, mask=Causal(), scores=(ALiBiSpec(),))),
        pre_norm(norm, FeedForwardSpec(d_ff=Width(4 * d_model), activation=GELU(form="tanh"))),
    )
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=tied,
        embedding_norm=norm,
        context=context,
    )


def _preset(name: str, n_layers: int, d_model: int, n_heads: int, published: str) -> Preset:
    return Preset(
        f"bloom-{name}",
        "bloom",
        bloom(n_layers=n_layers, d_model=d_model, n_heads=n_heads),
        "Le Scao et al. 2022, arXiv:2211.05100, table 3 (from memory)",
        published,
        "tables that call its branches parallel are wrong: the paper's figure 5 and the released code take them in turn",
        "byte-level BPE, 250,680, padded to 250,880",
    )


PRESETS = (
    _preset("560m", 24, 1024, 16, "559M"),
    _preset("1b1", 24, 1536, 16, "1065M"),
    _preset("1b7", 24, 2048, 16, "1722M"),
    _preset("3b", 30, 2560, 32, "3003M"),
    _preset("7b1", 30, 4096, 32, "7069M"),
    _preset("176b", 70, 14_336, 112, "176247M"),
)
