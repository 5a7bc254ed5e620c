"""Recipes: how a model is trained, as data. What is built is a ModelSpec; how it runs is neither's business."""

from anyformer.recipe.contrastive import Contrastive
from anyformer.recipe.file import dumps, loads, of_run, read
from anyformer.recipe.framed import FramedTexts
from anyformer.recipe.labelled import Classification, Labelled, Regression, TokenClassification
from anyformer.recipe.names import OBJECTIVES
from anyformer.recipe.objectives import (
    UL2,
    CausalLM,
    Denoiser,
    Denoising,
    MaskedLM,
    MultiToken,
    ObjectiveSpec,
    PermutedLM,
    PrefixLM,
    Reads,
    Seq2Seq,
    SpanCorruption,
)
from anyformer.recipe.optimizer import Adam, AdamW, OptimizerSpec
from anyformer.recipe.published import OLMO_1B_0724, RECIPES, SMALL, TRANSFORMER_2017, named
from anyformer.recipe.recipe import DropoutSpec, LearningRates, Precision, Recipe
from anyformer.recipe.replaced import ReplacedTokens
from anyformer.recipe.router import LoadBalance, RouterLossSpec, RouterTraining, RouterZLoss, SequenceBalance
from anyformer.recipe.schedule import Constant, CosineDecay, InverseSqrtDecay, LinearDecay, PieceSpec, Warmup
from anyformer.recipe.sentences import NextSentence, SentenceOrder, SentencePairs

__all__ = [
    "Classification",
    "Labelled",
    "Regression",
    "TokenClassification",
    "NextSentence",
    "SentenceOrder",
    "SentencePairs",
    "SequenceBalance",
    "RouterZLoss",
    "RouterTraining",
    "RouterLossSpec",
    "LoadBalance",
    "OBJECTIVES",
    "OLMO_1B_0724",
    "RECIPES",
    "SMALL",
    "TRANSFORMER_2017",
    "Adam",
    "AdamW",
    "CausalLM",
    "Constant",
    "Contrastive",
    "CosineDecay",
    "DropoutSpec",
    "InverseSqrtDecay",
    "LearningRates",
    "Denoiser",
    "Denoising",
    "FramedTexts",
    "MaskedLM",
    "PermutedLM",
    "PrefixLM",
    "SpanCorruption",
    "UL2",
    "MultiToken",
    "LinearDecay",
    "ObjectiveSpec",
    "OptimizerSpec",
    "PieceSpec",
    "Precision",
    "Reads",
    "Recipe",
    "ReplacedTokens",
    "Seq2Seq",
    "Warmup",
    "dumps",
    "loads",
    "named",
    "of_run",
    "read",
]
