"""Marian's Transformer, as the opus-mt models have it: Junczys-Dowmunt et al. 2018, arXiv:1804.00344.

The Transformer of 2017 with swish, sines before cosines in its positions, and a bias of the logits.
"""

from __future__ import annotations

from functools import partial

from anyformer.families.bart import NORM
from anyformer.families.lineage import Origin, Preset
from anyformer.families.transformer import transformer
from anyformer.layers import SiLU, SinusoidSpec
from anyformer.spec import ModelSpec

SINUSOIDS = SinusoidSpec(layout="concatenated")
marian = partial(transformer, positions=(SINUSOIDS,), activation=SiLU(), norm=NORM, head_bias=True)


def opus(*, d_model: int, n_heads: int, vocab_size: int) -> ModelSpec:
    """A model of OPUS-MT: six layers each way, feed-forwards four times as wide as the stream."""
    both = (4 * d_model, 4 * d_model)
    return marian(d_model=d_model, layers=(6, 6), n_heads=(n_heads, n_heads), d_ff=both, vocab_size=vocab_size)


SIZES = "Tiedemann & Thottingal 2020, OPUS-MT: transformer-align models of Marian, as released on Hugging Face"

MARIAN = Origin("marian", "transformer", 2018, "arXiv:1804.00344 and the released models").lineage(
    "sinusoids side by side, SiLU, a bias of the logits",
    Preset(
        "opus-mt-en-de",
        opus(d_model=512, n_heads=8, vocab_size=58_101),
        "74M",
        tokenizer="two SentencePiece models, one for each language, on one vocabulary of 58,101",
        alias="marian",
    ),
    Preset(
        "opus-mt-tc-big",
        opus(d_model=1024, n_heads=16, vocab_size=60_001),
        source=f"{SIZES}; sizes of the transformer-big models and their vocabulary from memory",
        tokenizer="SentencePiece, about 60,000",
    ),
    known="opus-mt-en-de",
    sizes=SIZES,
    training={
        "source": "Tiedemann & Thottingal 2020, OPUS-MT, EAMT; Marian's configuration of the Transformer (from memory)",
        "objective": "translation, labels smoothed by 0.1",
        "optimiser": "Adam, betas 0.9 and 0.98, eps 1e-9, dropout 0.1",
        "schedule": "linear over 16,000 steps to 3e-4, then 1/√step",
        "corpus": "OPUS",
    },
)
