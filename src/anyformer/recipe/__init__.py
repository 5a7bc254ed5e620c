"""Recipes: how a model is trained, as data. What is built is a ModelSpec; how it runs is neither's business."""

from anyformer.recipe.file import dumps, loads, read
from anyformer.recipe.objectives import NAMED as OBJECTIVES
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
    Seq2Seq,
    SpanCorruption,
)
from anyformer.recipe.optimizer import Adam, AdamW, OptimizerSpec
from anyformer.recipe.published import OLMO_1B_0724, RECIPES, SMALL, TRANSFORMER_2017, named
from anyformer.recipe.recipe import DropoutSpec, LearningRates, Precision, Recipe
from anyformer.recipe.router import LoadBalance, RouterLossSpec, RouterTraining, RouterZLoss, SequenceBalance
from anyformer.recipe.schedule import Constant, CosineDecay, InverseSqrtDecay, LinearDecay, PieceSpec, Warmup

__all__ = [
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
    "CosineDecay",
    "DropoutSpec",
    "InverseSqrtDecay",
    "LearningRates",
    "Denoiser",
    "Denoising",
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
    "Recipe",
    "Seq2Seq",
    "Warmup",
    "dumps",
    "loads",
    "named",
    "read",
]
