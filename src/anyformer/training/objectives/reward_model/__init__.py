"""Reward models: what an answer is worth, one number, as people would say who chose between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from anyformer.spec import NotNegative
from anyformer.training.objectives.answers import ComparedAnswers
from anyformer.training.objectives.specification import PADDED

SCORE = "score"  # the part of the losses that is no loss: the number that an answer gets


class RewardModel(ComparedAnswers):
    """-log sigmoid(r(chosen) - r(rejected)) + centre (r(chosen) + r(rejected))², r what a head says of a whole conversation.

    Bradley & Terry's model of choices: InstructGPT, arXiv:2203.02155, equation 1. It knows differences alone, and the second
    term has the numbers lie around 0: arXiv:2312.09244, section 2.
    """

    centre: NotNegative = 0.01

    roles: ClassVar[Mapping[str, str]] = PADDED
    head: ClassVar[Literal["classes"]] = "classes"  # of one row
