"""ALBERT: BERT with one layer for all depths and a narrow table of tokens. Lan et al. 2019, arXiv:1909.11942."""

from __future__ import annotations

from anyformer.families.bert import bert, layer
from anyformer.families.compose import repeat
from anyformer.families.heads import masked_words, row_classes
from anyformer.families.preset import Preset
from anyformer.layers import GELU, LayerNormSpec
from anyformer.spec import ModelSpec


def albert(
    *, n_layers: int, d_model: int, n_heads: int, d_ff: int | None = None, vocab_size: int = 30_000, width: int = 128
) -> ModelSpec:
    """ALBERT without heads: tokens of 128 features are projected to d_model, all layers are one (section 3.1)."""
    model = bert(n_layers=1, d_model=d_model, n_heads=n_heads, vocab_size=vocab_size, width=width)
    one = layer(n_heads, d_ff or 4 * d_model, LayerNormSpec(eps=1e-12), GELU(form="tanh")).but(shared="layer")
    return model.but(stack=model.stack.but(blocks=repeat(one, n_layers)))


def pretraining(model: ModelSpec) -> ModelSpec:
    """The model with what ALBERT is trained on: masked words, and which of two segments came first (section 3.1)."""
    return model.but(heads=(masked_words(model, GELU(form="tanh")), row_classes(2, "sop")))


def _preset(size: str, n_layers: int, d_model: int, published: str, erratum: str | None = None) -> Preset:
    return Preset(
        f"albert-{size}",
        "albert",
        pretraining(albert(n_layers=n_layers, d_model=d_model, n_heads=d_model // 64)),
        "Lan et al. 2019, arXiv:1909.11942, table 1",
        published,
        erratum,
        "SentencePiece unigram, 30,000",
    )


PRESETS = (
    _preset("base", 12, 768, "12M"),
    _preset("large", 24, 1024, "18M"),
    _preset("xlarge", 24, 2048, "60M", "59.0M with both heads, 54.5M without; the paper's sizes add up to no 60M"),
    _preset("xxlarge", 12, 4096, "235M", "223.2M with both heads, 205.8M without; the paper's sizes add up to no 235M"),
)
