"""Gopher (Rae et al. 2021, arXiv:2112.11446, table 1) and Chinchilla (Hoffmann et al. 2022, arXiv:2203.15556, table 4)."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm, repeat, with_biases
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    RelativeSinusoidSpec,
    RMSNormSpec,
)
from anyformer.spec import Count, ModelSpec, Width


def gopher(*, n_layers: int, d_model: int, n_heads: int, vocab_size: int = 32_000) -> ModelSpec:
    """GPT-2 with RMSNorm, and relative positions for learned ones (section 3.1)."""
    norm = RMSNormSpec()
    heads = with_biases(GQASpec(n_heads=Count(n_heads)), True, True)
    layer = block(
        pre_norm(norm, AttentionSpec(projection=heads, mask=Causal(), scores=(RelativeSinusoidSpec(),))),
        pre_norm(norm, FeedForwardSpec(d_ff=Width(4 * d_model), activation=GELU(form="tanh"))),
    )
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=True,
        context=2048,
    )


ASSUMED = "biases, the form of GELU, eps and the tied table are not published and are those of GPT-2"
ERRATUM = "tables that give it ReLU and T5's positions are wrong: the paper has RMSNorm and Transformer-XL's positions"


def _gopher(name: str, n_layers: int, d_model: int, n_heads: int) -> Preset:
    return Preset(
        f"gopher-{name.lower()}",
        "gopher",
        gopher(n_layers=n_layers, d_model=d_model, n_heads=n_heads),
        f"Rae et al. 2021, arXiv:2112.11446, table 1; {ASSUMED}",
        name,
        ERRATUM,
        "SentencePiece BPE with byte fallback, 32,000",
    )


PRESETS = (
    _gopher("44M", 8, 512, 16),
    _gopher("117M", 12, 768, 12),
    _gopher("417M", 12, 1536, 12),
    _gopher("1.4B", 24, 2048, 16),
    _gopher("7.1B", 32, 4096, 32),
    _gopher("280B", 80, 16_384, 128),
    Preset(
        "chinchilla-70b",
        "gopher",
        gopher(n_layers=80, d_model=8192, n_heads=64),
        f"Hoffmann et al. 2022, arXiv:2203.15556, table 4; {ASSUMED}",
        "70B",
        ERRATUM,
        "SentencePiece BPE, 32,000, without NFKC",
    ),
)
