"""Noise in training: for each objective that restores a text, what is done to its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.errors import UsageError
from anyformer.recipe import UL2, Denoising, MaskedLM, ObjectiveSpec, PermutedLM, PrefixLM, Recipe, SpanCorruption
from anyformer.text import Tokenizer
from anyformer.train.noise.masked import MaskedNoise
from anyformer.train.noise.noise import Noise, NoisyFeed, NoisyValidation, load_of
from anyformer.train.noise.permuted import PermutedNoise
from anyformer.train.noise.restored import denoising, prefix_lm, span_corruption, ul2

NOISES: dict[type[ObjectiveSpec], Callable[[Any, Recipe, Tokenizer], Noise]] = {
    MaskedLM: MaskedNoise.of,
    PermutedLM: PermutedNoise.of,
    SpanCorruption: span_corruption,
    PrefixLM: prefix_lm,
    Denoising: denoising,
    UL2: ul2,
}


def noise_of(recipe: Recipe, tokenizer: Tokenizer | None) -> Noise | None:
    """Return what the recipe's objective does to rows of text; None: nothing.

    Raises TextError for a vocabulary that lacks a token for it, UsageError where it would hide nothing.
    """
    objective = recipe.objective
    if type(objective) not in NOISES:
        return None
    if tokenizer is None:
        raise UsageError(f"{objective.kind} needs a tokenizer, to know which tokens are special; give TextData its own")
    return NOISES[type(objective)](objective, recipe, tokenizer)


__all__ = ["NOISES", "Noise", "NoisyFeed", "NoisyValidation", "load_of", "noise_of"]
