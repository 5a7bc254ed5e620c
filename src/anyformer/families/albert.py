"""ALBERT: BERT with one layer for all depths and a narrow table of tokens. Lan et al. 2019, arXiv:1909.11942."""

from __future__ import annotations

from anyformer.families.bert import bert, layer
from anyformer.families.compose import repeat
from anyformer.families.heads import masked_words, row_classes
from anyformer.families.lineage import Origin, Preset
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


ALBERT = Origin("albert", "bert", 2019, "arXiv:1909.11942, section 3.1").lineage(
    "one layer used for all, a narrow table projected, sentences in order or not",
    Preset("albert-base", pretraining(albert(n_layers=12, d_model=768, n_heads=12)), "12M", alias="albert"),
    Preset("albert-large", pretraining(albert(n_layers=24, d_model=1024, n_heads=16)), "18M"),
    Preset(
        "albert-xlarge",
        pretraining(albert(n_layers=24, d_model=2048, n_heads=32)),
        "60M",
        "59.0M with both heads, 54.5M without; the paper's sizes add up to no 60M",
    ),
    Preset(
        "albert-xxlarge",
        pretraining(albert(n_layers=12, d_model=4096, n_heads=64)),
        "235M",
        "223.2M with both heads, 205.8M without; the paper's sizes add up to no 235M",
    ),
    sizes="Lan et al. 2019, arXiv:1909.11942, table 1",
    tokenizer="SentencePiece unigram, 30,000",
    training={
        "source": "Lan et al. 2019, arXiv:1909.11942, section 4.1 (from memory)",
        "objective": "masked words, in runs of up to three; and which of two segments came first",
        "optimiser": "LAMB, learning rate 1.76e-3",
        "batch": "4,096 sequences of up to 512 tokens, 125,000 steps",
    },
)
