"""What each way to learn from preferences makes of the probabilities of two answers."""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.training.objectives.answers import DPO, IPO, ORPO, PreferenceSpec, SimPO


class AnswerPairs(NamedTuple):
    """Of pairs of answers the preferred one first, each [pair, 2]."""

    said: Tensor  # log p
    before: Tensor  # log p of the model that the run began with; 0 where none is asked
    tokens: Tensor  # how many

    @property
    def gain(self) -> Tensor:
        """By how much the preferred answer has become likelier, beside the other one [pair]."""
        gained = self.said - self.before
        return gained[:, 0] - gained[:, 1]

    @property
    def mean(self) -> Tensor:
        """Log p of a token of the answer [pair, 2], on average."""
        return self.said / self.tokens


class Preferred(NamedTuple):
    """What is made of pairs, each [pair]."""

    margin: (
        Tensor  # by how much the reward of the preferred answer is the higher one: its log odds (Bradley & Terry 1952)
    )
    loss: Tensor  # is minimised


@singledispatch
def preferred(way: PreferenceSpec, answers: AnswerPairs) -> Preferred:
    """What a way to learn from preferences makes of pairs of answers."""
    raise TypeError(
        f"{way.kind} makes nothing of preferences; register a function (anyformer.training.objectives.answers)"
    )


@preferred.register
def _(way: DPO, answers: AnswerPairs) -> Preferred:
    margin = way.beta * answers.gain
    return Preferred(margin, -F.logsigmoid(margin))


@preferred.register
def _(way: IPO, answers: AnswerPairs) -> Preferred:
    return Preferred(way.tau * answers.gain, (answers.gain - 1 / (2 * way.tau)).square())


@preferred.register
def _(way: SimPO, answers: AnswerPairs) -> Preferred:
    better, worse = answers.mean.unbind(1)
    margin = way.beta * (better - worse)
    return Preferred(margin, -F.logsigmoid(margin - way.gamma))


@preferred.register
def _(way: ORPO, answers: AnswerPairs) -> Preferred:
    below_1 = answers.mean.clamp(max=-torch.finfo(answers.mean.dtype).eps)  # odds of 1 have no end
    better, worse = (below_1 - torch.log(-torch.expm1(below_1))).unbind(1)
    margin = better - worse
    return Preferred(margin, way.weight * -F.logsigmoid(margin) - answers.mean[:, 0])
