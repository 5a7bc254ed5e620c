"""ALBERT: BERT with one layer for all depths and a narrow table of tokens. Lan et al. 2019, arXiv:1909.11942."""

from __future__ import annotations

from anyformer.families.bert import bert, pretraining
from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, FeedForwardSpec
from anyformer.spec import BlockSpec, ModelSpec

TANH = GELU(form="tanh")


def albert(*sizes: int) -> ModelSpec:
    """ALBERT without heads: tokens of 128 features are projected to d_model, all layers are one (section 3.1)."""
    model = bert(*sizes, vocab_size=30_000, width=128)
    return changed(changed(model, FeedForwardSpec, activation=TANH), BlockSpec, shared="layer")


def trained(*sizes: int) -> ModelSpec:
    """ALBERT with what it is trained on: masked words, and which of two segments came first (section 3.1)."""
    return pretraining(albert(*sizes), TANH, "sop")


ALBERT = Origin("albert", "bert", 2019, "arXiv:1909.11942, section 3.1").lineage(
    "one layer used for all, a narrow table projected, sentences in order or not",
    Preset("albert-base", trained(12, 768, 12), "12M", alias="albert"),
    Preset("albert-large", trained(24, 1024, 16), "18M"),
    Preset(
        "albert-xlarge",
        trained(24, 2048, 32),
        "60M",
        "59.0M with both heads, 54.5M without; the paper's sizes add up to no 60M",
    ),
    Preset(
        "albert-xxlarge",
        trained(12, 4096, 64),
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
