"""Objectives, a folder each: the specification (here, without torch), its noise or data, its loss.

A new objective is a folder with a specification in `__init__.py` and an `Objective[…]` of it in `loss.py`, and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping

from anyformer.training.objectives.answers import DPO, IPO, ORPO, SFT, SimPO
from anyformer.training.objectives.causal import CausalLM, MultiToken
from anyformer.training.objectives.contrastive import Contrastive
from anyformer.training.objectives.denoising import UL2, Denoising, PrefixLM, SpanCorruption
from anyformer.training.objectives.infilling import FillInTheMiddle
from anyformer.training.objectives.labelled import Classification, Regression, TokenClassification
from anyformer.training.objectives.masked import MaskedLM
from anyformer.training.objectives.permuted import PermutedLM
from anyformer.training.objectives.replaced import ReplacedTokens
from anyformer.training.objectives.reward_model import RewardModel
from anyformer.training.objectives.rewarded import DAPO, GRPO, RLOO, DrGRPO
from anyformer.training.objectives.sentences import NextSentence, SentenceOrder
from anyformer.training.objectives.seq2seq import Seq2Seq
from anyformer.training.objectives.specification import ObjectiveSpec

OBJECTIVES: Mapping[str, ObjectiveSpec] = {
    "causal-lm": CausalLM(),
    "multi-token": MultiToken(),
    "fill-in-the-middle": FillInTheMiddle(),
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
    "sft": SFT(),
    "dpo": DPO(),
    "ipo": IPO(),
    "simpo": SimPO(),
    "orpo": ORPO(),
    "reward-model": RewardModel(),
    "grpo": GRPO(),
    "dapo": DAPO(),
    "dr-grpo": DrGRPO(),
    "rloo": RLOO(),
    "contrastive": Contrastive(),
    "classification": Classification(),
    "regression": Regression(),
    "token-classification": TokenClassification(),
}
"""The objectives by the names that a command takes, each with the defaults of its paper."""
