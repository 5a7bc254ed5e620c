"""Longformer and LED: RoBERTa and BART with a window, and marked tokens that see all and are seen by all: arXiv:2004.05150."""

from __future__ import annotations

from typing import Any

from anyformer.families.bart import bart
from anyformer.families.bert import BYTES, roberta
from anyformer.families.compose import changed
from anyformer.families.heads import with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    AttentionSpec,
    Heads,
    LearnedPositionsSpec,
    LocalAndGlobalSpec,
    MarkedKeys,
    MarkedQueries,
    Mask,
    SymmetricWindow,
)
from anyformer.spec import Count, Length, ModelSpec, StackSpec, Window


def seen(window: int) -> Mask:
    """Who sees whom: local heads answer unmarked tokens, global heads marked ones (section 3.1)."""
    near = SymmetricWindow(radius=Window(window // 2)) | MarkedKeys()
    return Heads(masks=(near & ~MarkedQueries(), MarkedQueries()))


def local_and_global(stack: StackSpec, n_heads: int, window: int) -> StackSpec:
    """The stack with a second set of projections in each layer, and a window of half its width to either side."""
    return changed(stack, AttentionSpec, projection=LocalAndGlobalSpec(n_heads=Count(n_heads)), mask=seen(window))


def first_marked(model: ModelSpec) -> ModelSpec:
    """The model to whose attention the first token of a text is global where nothing is said: to classify texts by it."""
    return changed(changed(model, MarkedKeys, unsaid="first"), MarkedQueries, unsaid="first")


def longformer(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """The encoder without heads (section 5): RoBERTa's, its positions repeated up to 4,096."""
    model = roberta(n_layers, d_model, n_heads, context=4096)
    return model.but(stack=local_and_global(model.stack, n_heads, 512))


def led(*, n_heads: tuple[int, int], **sizes: Any) -> ModelSpec:
    """BART whose encoder is Longformer's (section 7); of each pair of sizes the encoder's comes first."""
    model = changed(bart(n_heads=n_heads, **sizes), LearnedPositionsSpec, offset=0)
    assert model.encoder is not None
    encoder = changed(model.encoder, LearnedPositionsSpec, n_positions=Length(16_384))
    return model.but(encoder=local_and_global(encoder, n_heads[0], 1024))


SIZES = "Beltagy et al. 2020, arXiv:2004.05150, sections 5 and 7; totals of the released checkpoints"
BASE = longformer(12, 768, 12)
LARGE = longformer(24, 1024, 16)


LONGFORMER = Origin("longformer", "roberta", 2020, "arXiv:2004.05150, section 3.1").lineage(
    "a window of 512, and marked tokens, with projections of their own, that see all; 4,096 tokens",
    Preset("longformer-base-4096", with_masked_words(BASE), "149M", alias="longformer"),
    Preset("longformer-large-4096", with_masked_words(LARGE), "435M"),
    sizes=SIZES,
    tokenizer=BYTES,
    training={
        "source": "Beltagy et al. 2020, arXiv:2004.05150, section 5 (from memory)",
        "objective": "masked words",
        "start": "RoBERTa's weights, its 512 positions copied eight times",
        "schedule": "linear over 500 steps to 3e-5, then a power of 3 to 0",
        "batch": "64 sequences of 4,096 tokens, 65,000 steps",
    },
)
LED = Origin("led", "bart", 2020, "arXiv:2004.05150, section 7").lineage(
    "Longformer's encoder: windows, and marked tokens that see all; 16,384 tokens",
    Preset("led-base-16384", led(d_model=768, layers=(6, 6), n_heads=(12, 12), d_ff=(3072, 3072)), "162M", alias="led"),
    Preset("led-large-16384", led(d_model=1024, layers=(12, 12), n_heads=(16, 16), d_ff=(4096, 4096)), "460M"),
    family="longformer",
    sizes=SIZES,
    tokenizer=BYTES,
    training={
        "source": "Beltagy et al. 2020, arXiv:2004.05150, section 7 (from memory)",
        "start": "BART's weights, its 1,024 positions copied sixteen times in the encoder; not trained further before tasks",
    },
)
