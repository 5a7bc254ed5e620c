"""BART's descendants that norm before their branches: mBART (arXiv:2001.08210, 2008.00401), M2M-100 (2010.11125), NLLB
(2207.04672), PEGASUS (1912.08777), BigBird-PEGASUS (2007.14062), Blenderbot (2004.13637)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from anyformer.families.bart import NORM, bart
from anyformer.families.bigbird import TANH, block_sparse
from anyformer.families.compose import changed
from anyformer.families.fsmt import POSITIONS
from anyformer.families.lineage import Origin, Preset
from anyformer.families.marian import SINUSOIDS
from anyformer.families.transformer import ROOT, two_stacks
from anyformer.layers import GELU, GQASpec, LearnedPositionsSpec, ReLU
from anyformer.spec import Length, ModelSpec

mbart = partial(bart, norm_first=True, token_scale=ROOT)
plain = partial(two_stacks, norm=NORM, norm_first=True, token_scale=ROOT)
m2m_100 = partial(plain, vocab_size=128_112, positions=(POSITIONS,), activation=ReLU(), context=1024)
pegasus = partial(plain, vocab_size=96_103, positions=(SINUSOIDS,), activation=ReLU(), context=1024)
blenderbot = partial(
    plain,
    vocab_size=8008,
    positions=(LearnedPositionsSpec(n_positions=Length(128)),),
    activation=GELU(),
    context=128,
)


def bigbird_pegasus(**sizes: Any) -> ModelSpec:
    """PEGASUS over 4,096 tokens, of which the encoder's see a few blocks (arXiv:2007.14062, section 4)."""
    usual = {"vocab_size": 96_103, "context": 4096, "token_scale": ROOT, **sizes}
    positions = (LearnedPositionsSpec(n_positions=Length(usual["context"])),)
    model = two_stacks(norm=NORM, norm_first=True, positions=positions, activation=TANH, **usual)
    biases = ("bias_query", "bias_key", "bias_value", "bias_output")
    model = changed(model, GQASpec, **dict.fromkeys(biases, False))
    assert model.encoder is not None
    return model.but(encoder=block_sparse(model.encoder, 64, 3))


nllb = partial(m2m_100, vocab_size=256_206)


def large(model: Callable[..., ModelSpec], n_layers: int, d_ff: int = 4096, d_model: int = 1024) -> ModelSpec:
    """As many layers in both stacks."""
    return model(d_model=d_model, layers=(n_layers, n_layers), n_heads=(16, 16), d_ff=(d_ff, d_ff))


def talking(n_layers: int, d_model: int) -> ModelSpec:
    """An encoder of two layers beside a deep decoder (arXiv:2004.13637, section 2.2)."""
    return blenderbot(d_model=d_model, layers=(2, n_layers), n_heads=(32, 32), d_ff=(4 * d_model, 4 * d_model))


PIECES = "SentencePiece, {}"

MBART = Origin("mbart", "bart", 2020, "arXiv:2001.08210, section 2").lineage(
    "norms before each branch and at the end, embeddings times √d_model, 25 and then 50 languages",
    Preset(
        "mbart-large-cc25",
        large(partial(mbart, vocab_size=250_027), 12),
        "680M",
        "610.9M on one table, as released; the paper rounds or counts more of them",
        tokenizer=PIECES.format("250,027"),
    ),
    Preset(
        "mbart-large-50",
        large(partial(mbart, vocab_size=250_054), 12),
        "611M",
        alias="mbart",
        source="Tang et al. 2020, arXiv:2008.00401; sizes as released (total from memory)",
        tokenizer=PIECES.format("250,054"),
    ),
    sizes="Liu et al. 2020, arXiv:2001.08210, section 2.2 (total from memory); the vocabulary as released",
)
M2M_100 = Origin("m2m-100", "mbart", 2020, "arXiv:2010.11125, section 4").lineage(
    "sinusoids for learned positions, ReLU, no norm of the embeddings, 128,112 tokens of 100 languages",
    Preset(
        "m2m100-418m",
        large(m2m_100, 12),
        "418M",
        "483.9M on one table of 128,112 rows; the name counts fewer",
        alias="m2m-100",
    ),
    Preset("m2m100-1.2b", large(m2m_100, 24, 8192), "1.2B"),
    known="m2m100-418m",
    family="mbart",
    sizes="Fan et al. 2020, arXiv:2010.11125; sizes as released (from memory)",
    tokenizer=PIECES.format("128,112"),
)
NLLB = Origin("nllb", "m2m-100", 2022, "arXiv:2207.04672, section 6").lineage(
    "256,206 tokens of 202 languages",
    Preset("nllb-200-distilled-600m", large(nllb, 12), "600M", "615.1M, which the name cuts"),
    Preset("nllb-200-1.3b", large(nllb, 24, 8192), "1.3B", "1.37B, which the name cuts", alias="nllb"),
    Preset("nllb-200-3.3b", large(nllb, 24, 8192, 2048), "3.3B"),
    known="nllb-200-1.3b",
    family="mbart",
    sizes="NLLB Team 2022, arXiv:2207.04672; sizes as released (the larger two from memory)",
    tokenizer=PIECES.format("256,206"),
)
PEGASUS = Origin("pegasus", "bart", 2019, "arXiv:1912.08777, section 3").lineage(
    "norms before each branch and at the end, sinusoids, ReLU, 96,103 tokens; writes whole sentences that were taken out",
    Preset("pegasus-large", large(pegasus, 16), "568M", "568.70M, which the paper cuts", alias="pegasus"),
    family="mbart",
    sizes="Zhang et al. 2019, arXiv:1912.08777, section 5; vocabulary and context as released",
    tokenizer="SentencePiece unigram, 96,103",
)
BIGBIRD_PEGASUS = Origin("bigbird-pegasus", "pegasus", 2020, "arXiv:2007.14062, section 4").lineage(
    "BigBird's blocks in the encoder, 4,096 learned positions, GELU, no biases in attention",
    Preset("bigbird-pegasus-large", large(bigbird_pegasus, 16), alias="bigbird-pegasus"),
    family="mbart",
    sizes="Zaheer et al. 2020, arXiv:2007.14062, section 4.1; sizes of the class, as released",
    tokenizer="SentencePiece unigram, 96,103",
)
BLENDERBOT = Origin("blenderbot", "bart", 2020, "arXiv:2004.13637, section 2.2").lineage(
    "norms before each branch and at the end, two layers beside many, 128 tokens",
    Preset("blenderbot-400m-distill", talking(12, 1280), "365M", alias="blenderbot"),
    Preset("blenderbot-3b", talking(24, 2560), "2.7B"),
    family="mbart",
    sizes="Roller et al. 2020, arXiv:2004.13637, table 2 (totals from memory); the vocabulary as released",
    tokenizer="byte-level BPE, 8,008",
)
