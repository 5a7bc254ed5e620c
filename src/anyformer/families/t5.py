"""T5, its version 1.1 and mT5: arXiv:1910.10683, arXiv:2002.05202, arXiv:2010.11934, each derived from the one before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from anyformer.families.compose import attend, block, feed, gated, language_model, pre_norm
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    ByRole,
    Everything,
    FeedForwardSpec,
    Normal,
    RelativeBucketsSpec,
    ReLU,
    RMSNormSpec,
)
from anyformer.spec import MixerSpec, ModelSpec, ScaleSpec

UNSCALED = ScaleSpec()  # of q·k; the start of the queries' matrices makes up for it


def dense(d_ff: int) -> FeedForwardSpec:
    """The feed-forward of arXiv:1910.10683: ReLU, no biases."""
    return feed(d_ff, ReLU(), bias=False)


def t5(
    *,
    d_model: int,
    n_heads: int,
    encoder: Sequence[MixerSpec],
    decoder: Sequence[MixerSpec],
    head_dim: int = 64,
    vocab_size: int = 32_128,
    tied: bool = True,
    scaled: bool = True,
    one_table: bool = True,
) -> ModelSpec:
    """Pre-norm stacks without biases, a layer for each feed-forward given (arXiv:1910.10683, section 2.1).

    The layers of a stack share `one_table` of buckets of distance, or have one each. A head that is `scaled` multiplies by
    d_model^-0.5.
    """
    norm = RMSNormSpec(eps=1e-6)
    plain = attend(n_heads, head_dim=head_dim, scale=UNSCALED)
    either_way = RelativeBucketsSpec(bidirectional=True, shared="encoder_buckets" if one_table else None)
    back = RelativeBucketsSpec(bidirectional=False, shared="decoder_buckets" if one_table else None)
    every = pre_norm(norm, plain.but(mask=Everything(), scores=(either_way,)))
    past = pre_norm(norm, plain.but(scores=(back,)))
    memory = pre_norm(norm, plain.but(mask=Everything(), reads="memory"))
    fan_in = Normal(scale=1.0, fan_in_power=-0.5)
    return language_model(
        vocab_size,
        d_model,
        tuple(block(past, memory, pre_norm(norm, feed)) for feed in decoder),
        norm,
        encoder=tuple(block(every, pre_norm(norm, feed)) for feed in encoder),
        tied=tied,
        logit_scale=ScaleSpec(power=-0.5) if scaled else None,
        init=ByRole(table=Normal(scale=1.0), matrix=fan_in, query=fan_in.but(scale=head_dim**-0.5)),
        context=512,
    )


def original(n_layers: int, d_model: int, n_heads: int, d_ff: int, head_dim: int = 64) -> ModelSpec:
    """T5: as many layers in each stack."""
    feeds = (dense(d_ff),) * n_layers
    return t5(d_model=d_model, n_heads=n_heads, encoder=feeds, decoder=feeds, head_dim=head_dim)


def v1_1(n_layers: int, d_model: int, n_heads: int, d_ff: int, **fields: Any) -> ModelSpec:
    """Version 1.1: GEGLU (arXiv:2002.05202), with GELU's tanh form, and a table of the head's own, not scaled."""
    feeds = (gated(d_ff, GELU(form="tanh")),) * n_layers
    return t5(d_model=d_model, n_heads=n_heads, encoder=feeds, decoder=feeds, tied=False, scaled=False, **fields)


TOKENIZER = "SentencePiece, 32,000 pieces and 100 sentinels; the table has 32,128 rows"
ROUNDED = "the paper rounds: {:,}"
SPANS = "spans of 3 tokens on average, 15 % of the tokens, put out in order"
UNTASKED = f"{SPANS}; no tasks among them"
SCHEDULE = "1/√max(step, 10,000)"
SMALL = (8, 512, 6, 1024)
BASE = (12, 768, 12, 2048)
LARGE = (24, 1024, 16, 2816)
XL = (24, 2048, 32, 5120)
XXL = (24, 4096, 64, 10_240)
multilingual = partial(v1_1, vocab_size=250_112)

T5 = Origin("t5", "transformer", 2019, "arXiv:1910.10683, section 2.1").lineage(
    "norms before each branch, RMSNorm, learned distances, no biases",
    Preset("t5-small", original(6, 512, 8, 2048), "60M", ROUNDED.format(60_506_624)),
    Preset("t5-base", original(12, 768, 12, 3072), "220M", ROUNDED.format(222_903_552), alias="t5"),
    Preset(
        "t5-large", original(24, 1024, 16, 4096), "770M", "its sizes give 737,668,096, 4 % less than the paper prints"
    ),
    Preset("t5-3b", original(24, 1024, 32, 16_384, 128), "2.8B", "the paper cuts off: 2,851,598,336"),
    Preset("t5-11b", original(24, 1024, 128, 65_536, 128), "11B"),
    sizes="Raffel et al. 2019, arXiv:1910.10683, section 3.7",
    tokenizer=TOKENIZER,
    training={
        "source": "Raffel et al. 2019, arXiv:1910.10683, sections 3.1.2 and 3.7",
        "objective": f"{SPANS}; supervised tasks among them",
        "pretraining tokens": "1,000,000 steps, about 1T tokens",
    },
)
T5_V1_1 = Origin("t5-v1.1", "t5", 2020, "arXiv:2002.05202 and the release of T5 1.1").lineage(
    "GeGLU, untied tables",
    Preset("t5-v1.1-small", v1_1(*SMALL), "77M"),
    Preset("t5-v1.1-base", v1_1(*BASE), "248M", alias="t5-v1.1"),
    Preset("t5-v1.1-large", v1_1(*LARGE), "783M"),
    Preset("t5-v1.1-xl", v1_1(*XL), "2.85B"),
    Preset("t5-v1.1-xxl", v1_1(*XXL), "11.1B"),
    family="t5",
    sizes="Shazeer 2020, arXiv:2002.05202, and the released configurations of T5.1.1, from memory",
    tokenizer=TOKENIZER,
    training={
        "source": "Shazeer 2020, arXiv:2002.05202, section 3.1, and the notes on the released checkpoints (from memory)",
        "objective": UNTASKED,
        "dropout": "none",
        "optimiser": "Adafactor",
        "schedule": SCHEDULE,
        "corpus": "C4",
    },
)
MT5 = Origin("mt5", "t5-v1.1", 2020, "arXiv:2010.11934, section 3.2").lineage(
    "250,112 tokens of 101 languages",
    Preset("mt5-small", multilingual(*SMALL), "300M"),
    Preset("mt5-base", multilingual(*BASE), "580M", ROUNDED.format(582_401_280), alias="mt5"),
    Preset("mt5-large", multilingual(*LARGE), "1.2B"),
    Preset("mt5-xl", multilingual(*XL), "3.7B"),
    Preset("mt5-xxl", multilingual(*XXL), "13B"),
    family="t5",
    sizes="Xue et al. 2020, arXiv:2010.11934, table 1; sizes as T5.1.1's",
    tokenizer="SentencePiece with byte fallback, 250,000 pieces; the table has 250,112 rows",
    training={
        "source": "Xue et al. 2020, arXiv:2010.11934, section 3 (from memory)",
        "objective": UNTASKED,
        "dropout": "none",
        "schedule": SCHEDULE,
        "batch": "1,024 sequences of 1,024 tokens, 1,000,000 steps: about 1T tokens",
        "corpus": "mC4, 101 languages, each drawn by the 0.3rd power of its size",
    },
)
