"""The objectives by the names that a command takes, each with the defaults of its paper."""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.recipe.contrastive import Contrastive
from anyformer.recipe.labelled import Classification, Regression, TokenClassification
from anyformer.recipe.objectives import (
    UL2,
    CausalLM,
    Denoising,
    MaskedLM,
    MultiToken,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Seq2Seq,
    SpanCorruption,
)
from anyformer.recipe.replaced import ReplacedTokens
from anyformer.recipe.sentences import NextSentence, SentenceOrder

OBJECTIVES: Mapping[str, ObjectiveSpec] = {
    "causal-lm": CausalLM(),
    "multi-token": MultiToken(),
    "masked-lm": MaskedLM(),
    "next-sentence": NextSentence(),
    "sentence-order": SentenceOrder(),
    "permuted-lm": PermutedLM(),
    "replaced-tokens": ReplacedTokens(),
    "span-corruption": SpanCorruption(),
    "prefix-lm": PrefixLM(),
    "denoising": Denoising(),
    "ul2": UL2(),
    "seq2seq": Seq2Seq(),
    "contrastive": Contrastive(),
    "classification": Classification(),
    "regression": Regression(),
    "token-classification": TokenClassification(),
}
