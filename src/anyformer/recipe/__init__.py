"""Recipes: how a model is trained, as data. What is built is a ModelSpec; how it runs is neither's business."""

from anyformer.recipe.file import dumps, loads, of_run, read
from anyformer.recipe.published import OLMO_1B_0724, RECIPES, SMALL, TRANSFORMER_2017, named
from anyformer.recipe.recipe import (
    Adam,
    AdamW,
    DropoutSpec,
    LearningRates,
    LoadBalance,
    OptimizerSpec,
    Precision,
    Recipe,
    RouterLossSpec,
    RouterTraining,
    RouterZLoss,
    SequenceBalance,
)
from anyformer.recipe.schedule import Constant, CosineDecay, InverseSqrtDecay, LinearDecay, PieceSpec, Warmup
from anyformer.training.objectives import OBJECTIVES
from anyformer.training.objectives.causal import CausalLM, MultiToken
from anyformer.training.objectives.contrastive import Contrastive
from anyformer.training.objectives.denoising import UL2, Denoiser, Denoising, PrefixLM, SpanCorruption
from anyformer.training.objectives.labelled import Classification, Labelled, Regression, TokenClassification
from anyformer.training.objectives.masked import MaskedLM
from anyformer.training.objectives.permuted import PermutedLM
from anyformer.training.objectives.replaced import ReplacedTokens
from anyformer.training.objectives.sentences import NextSentence, SentenceOrder, SentencePairs
from anyformer.training.objectives.seq2seq import Seq2Seq
from anyformer.training.objectives.specification import FramedTexts, ObjectiveSpec, Reads

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
