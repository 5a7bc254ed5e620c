"""Learning from rewards: REINFORCE on answers that the model has just written, each beside the others of its group.

Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 4.1; DeepSeek-AI 2025 (R1), arXiv:2501.12948, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.hub.source import find
from anyformer.layers.context import Notes
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.model import Transformer
from anyformer.recipe import DropoutSpec, Recipe
from anyformer.spec import Place, Workload
from anyformer.text import NOT_PREDICTED
from anyformer.text.prompts import Answered
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives.answers.encoded import side_by_side
from anyformer.training.objectives.answers.loss import asked_of, no_decoder
from anyformer.training.objectives.objective import (
    JudgedAnswer,
    LossContext,
    Losses,
    LossPart,
    Objective,
    Teacher,
    from_teacher,
    tensor,
)
from anyformer.training.objectives.rewarded import ENDED, LENGTH, REWARD, Judge, RewardedSpec, RewardSpec
from anyformer.training.objectives.rewarded.advantages import advantages
from anyformer.training.objectives.rewarded.data import PromptRows
from anyformer.training.objectives.rewarded.judging import Worth, WrittenAnswer, judged, worth_by
from anyformer.training.objectives.rewarded.rollouts import rollouts

ENTROPY = "entropy"  # the part of the losses that is no loss: nats of a token that was drawn
ALIKE = "alike"  # the same: of prompts, those all of whose answers are worth the same, from which nothing is learnt
CLIPPED = "clipped"  # the same: of tokens, those that earlier updates have taken as far as they may


class RewardedObjective(Objective[RewardedSpec]):
    """For decoders; rows are `PromptRows`."""

    _worths: list[tuple[RewardSpec, Worth]] | None = None  # once answers are judged

    def refuses(self) -> str | None:
        return no_decoder(self.spec)

    @property
    def updates(self) -> int:
        return self.said.updates

    @property
    def judges(self) -> tuple[Path, ...]:
        return tuple(Path(each.model) for each in self.said.rewards if isinstance(each, Judge))

    def answering_flops(self, forward: float, load: Workload) -> float:
        """Of writing, of what they were drawn by, where further updates go by that, and of the judges' reading."""
        read = sum(find(judge).spec.cost(Place(), load).flops for judge in self.judges)
        return forward * (1 + (self.updates > 1)) + read

    @property
    def has_teacher(self) -> bool:
        """What was drawn is held against what a teacher says of it (on-policy distillation: arXiv:2306.13649)."""
        return True

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        self.refuse_of_classes(recipe)
        if recipe.dropout != DropoutSpec():
            raise UsageError(f"{self.said.kind} learns from what the model says without dropout; leave the rates out")
        if recipe.distillation is not None and recipe.distillation.temperature != 1:
            raise UsageError(f"{self.said.kind} draws at temperature 1, and so is its teacher heard; leave it out")

    def answered(self, by: LossContext, rows: PromptRows) -> PromptRows:
        """With answers by the model as it is, what they are worth, and -log p of each token where further updates go by it."""
        model = by.forward
        assert isinstance(model, Transformer)
        assert self.tokenizer is not None
        texts = rollouts(model, self.tokenizer, rows, self.said)
        asked = np.broadcast_to(rows.exchange, rows.labels.shape).flat
        if self._worths is None:
            self._worths = [(reward, worth_by(reward, by.device)) for reward in self.said.rewards]
        rewards = judged(self._worths, [WrittenAnswer(row, each.text) for row, each in zip(asked, texts, strict=True)])
        shape = rows.labels.shape
        found = rows._replace(answers=np.fromiter(texts, object).reshape(shape), rewards=rewards.reshape(shape))
        if self.updates > 1 and found.drawn:
            asked, predicted = _inputs(by, found)
            _, nats = cross_entropy(by.head, model(**asked, dropout=by.dropout).read_by(by.head), predicted)
            for answer, each, labels in zip(texts, nats.cpu(), predicted, strict=True):
                answer.nats = each[labels != NOT_PREDICTED]
        return found

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        """The losses of answered rows; `each` is of an answer. What was not drawn, is not learnt from."""
        answers, highest = rows.answers.ravel(), self.said.highest
        rewards = torch.tensor(rows.rewards, dtype=torch.float32, device=by.device)
        n, tokens = torch.tensor(rewards.numel()), torch.tensor([len(each.ids) for each in answers]).view_as(rewards)
        parts = {
            REWARD: LossPart(rewards.sum(), n, None if self.judges else (rewards >= highest).sum()),
            LENGTH: LossPart(tokens.sum(), n),
            ENDED: LossPart(torch.tensor(sum(each.ended for each in answers)), n),
        }
        each = highest - rewards
        if not rows.drawn:
            return Losses(each.sum(), each, parts=parts, answers=_told(rows))
        counted = advantages(self.said, rewards, tokens.to(rewards))
        alike = (rewards == rewards[:, :1]).all(1)
        parts[ALIKE] = LossPart(alike.sum(), torch.tensor(len(alike)))
        total, notes, further = self._learnt(by, rows, counted)
        return Losses(total, each, notes, {**parts, **further})

    def _learnt(
        self, by: LossContext, rows: PromptRows, counted: Tensor
    ) -> tuple[Tensor, Sequence[Notes], Mapping[str, LossPart]]:
        """(what is minimised, the notes of the pass, further parts) where tokens of answers count so much [prompt, answer]."""
        asked, predicted = _inputs(by, rows)
        out = by.forward(**asked, dropout=by.dropout)
        hidden, n = out.read_by(by.head), (predicted != NOT_PREDICTED).sum()
        weights, parts = counted.view(-1, 1).expand(predicted.shape), dict[str, LossPart]()
        if self.updates > 1 or by.teacher is not None:
            with torch.no_grad():
                _, now = cross_entropy(by.head, hidden, predicted)
            if self.updates > 1:
                weights, parts[CLIPPED] = self._clipped(weights, rows, now, predicted)
            if by.teacher is not None:
                weights, taught = _toward(by.teacher, weights, asked, now, predicted)
                parts |= taught
        total, nats = cross_entropy(by.head, hidden, predicted, weights=weights)
        return total, out.notes, {ENTROPY: LossPart(nats.detach().sum(), n), **parts}

    def _clipped(self, weights: Tensor, rows: PromptRows, now: Tensor, predicted: Tensor) -> tuple[Tensor, LossPart]:
        """The weights of tokens whose -log p is `now` another than when they were drawn (PPO: arXiv:1707.06347, equation 7)."""
        real = predicted != NOT_PREDICTED
        drawn = torch.cat([each.nats for each in rows.answers.flat]).to(now)
        ratio = (now.masked_scatter(real.to(now.device), drawn) - now).exp()
        # Beyond that, the smaller side of the objective is a constant.
        clipped = torch.where(weights > 0, ratio > 1 + self.said.clip_above, ratio < 1 - self.said.clip_below)
        return (weights * ratio).masked_fill(clipped, 0), LossPart(clipped.sum(), real.sum())


def _toward(
    teacher: Teacher, weights: Tensor, asked: Mapping[str, Any], now: Tensor, predicted: Tensor
) -> tuple[Tensor, Mapping[str, LossPart]]:
    """The weights with a share of what the divergence from a teacher has; that divergence (DeepSeekMath, equation 4)."""
    share, theirs = teacher.how.weight, teacher.model
    with torch.no_grad():
        said = theirs(**asked).read_by(theirs.head())
        likelier = now - cross_entropy(theirs.head(), said, predicted)[1]
    tokens = (predicted != NOT_PREDICTED).sum(1, keepdim=True).to(likelier)
    # exp(d) - d - 1, d = log p of the teacher - log p: its slope by -log p is exp(d) - 1.
    weights = (1 - share) * weights + share * torch.expm1(likelier) / tokens
    return weights, from_teacher((torch.expm1(likelier) - likelier).sum(), predicted)


def _told(rows: PromptRows) -> tuple[JudgedAnswer, ...]:
    """The answers in words."""
    return tuple(
        JudgedAnswer(row.line, row.before, each.text, float(reward))
        for (row,), group, rewards in zip(rows.exchange, rows.answers, rows.rewards, strict=True)
        for each, reward in zip(group, rewards, strict=True)
    )


def _inputs(by: LossContext, rows: PromptRows) -> tuple[dict[str, Any], Tensor]:
    """(what a pass over all answers is given, each behind its prompt; the next token of an answer [answer, token])."""
    ids, mask, labels = side_by_side(
        [
            Answered(np.array([*before, *each.ids]), np.arange(len(before) + len(each.ids)) >= len(before))
            for prompt, (n,), group in zip(rows.ids[:, 0], rows.n, rows.answers, strict=True)
            for before in [prompt[:n]]
            for each in group
        ]
    )
    return asked_of(ids, mask, by.device), tensor(labels)
