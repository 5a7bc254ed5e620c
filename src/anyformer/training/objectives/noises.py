"""Noise in training: for each objective that restores a text, what is done to its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.errors import UsageError
from anyformer.recipe import (
    UL2,
    Denoising,
    MaskedLM,
    NextSentence,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Recipe,
    ReplacedTokens,
    SentenceOrder,
    SpanCorruption,
)
from anyformer.text import EncodedCorpus, Tokenizer, pack, pack_whole
from anyformer.training.data.noise import Noise, NoisyFeed, NoisyValidation, Numbered, load_of
from anyformer.training.objectives.denoising.noise import denoising, prefix_lm, span_corruption, ul2
from anyformer.training.objectives.masked.noise import MaskedNoise
from anyformer.training.objectives.permuted.noise import PermutedNoise
from anyformer.training.objectives.replaced.noise import ReplacedNoise
from anyformer.training.objectives.sentences.noise import SentenceNoise

NOISES: dict[type[ObjectiveSpec], Callable[[Any, Recipe, Tokenizer], Noise]] = {
    MaskedLM: MaskedNoise.of,
    NextSentence: SentenceNoise.of,
    SentenceOrder: SentenceNoise.of,
    PermutedLM: PermutedNoise.of,
    ReplacedTokens: ReplacedNoise.of,
    SpanCorruption: span_corruption,
    PrefixLM: prefix_lm,
    Denoising: denoising,
    UL2: ul2,
}


def noise_of(recipe: Recipe, tokenizer: Tokenizer | None) -> Noise | None:
    """What the recipe's objective does to rows of text; None: nothing.

    Raises TextError for a vocabulary that lacks a token for it, UsageError where it would hide nothing.
    """
    objective = recipe.objective
    if type(objective) not in NOISES:
        return None
    if tokenizer is None:
        raise UsageError(f"{objective.kind} needs a tokenizer, to know which tokens are special; give TextData its own")
    return NOISES[type(objective)](objective, recipe, tokenizer)


def training_rows(text: EncodedCorpus, recipe: Recipe, noise: Noise) -> Numbered:
    """What rows are made of: passages for pairs, documents end to end for all else."""
    if isinstance(noise, SentenceNoise):
        return noise.passages(text, recipe)
    return pack(text, recipe.seq_len, seed=recipe.seed)


def validation_rows(text: EncodedCorpus, recipe: Recipe, noise: Noise) -> Numbered:
    """The same for validation: documents are whole where they fit into a row."""
    return noise.passages(text, recipe) if isinstance(noise, SentenceNoise) else pack_whole(text, recipe.seq_len)


__all__ = [
    "NOISES",
    "Noise",
    "NoisyFeed",
    "NoisyValidation",
    "load_of",
    "noise_of",
    "training_rows",
    "validation_rows",
]
