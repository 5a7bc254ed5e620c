"""The loss of a reward model: Ouyang et al. 2022 (InstructGPT), arXiv:2203.02155, section 3.5, equation 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.families import with_classifier
from anyformer.layers.execution import exact
from anyformer.model import Output
from anyformer.spec import ModelSpec
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.answers import MARGIN
from anyformer.training.objectives.answers.loss import ComparedObjective
from anyformer.training.objectives.architecture import head_called
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, on
from anyformer.training.objectives.reward_model import SCORE, RewardModel
from anyformer.training.objectives.reward_model.data import EncodedAnswers


class RewardModelObjective(ComparedObjective[RewardModel]):
    """For models whose head says one number of a text; rows are `AnswerRows`."""

    encoded: ClassVar = EncodedAnswers

    def refuses(self) -> str | None:
        return no_score(self.spec)

    @classmethod
    def with_head(cls, said: RewardModel, spec: ModelSpec, labels: Sequence[str] | None) -> ModelSpec:
        return with_classifier(spec, 1, said.head)

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        return asked_of_answers(rows, device)

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        """The losses; `each` is of a pair, without what keeps the numbers around 0."""
        scores = scores_of(out, rows)
        better, worse = scores.unbind(1)
        margin = better - worse
        loss = -F.logsigmoid(margin)
        total = (loss + self.said.centre * (better + worse).square()).sum()
        count = torch.tensor(len(margin), device=margin.device)
        parts = {
            MARGIN: LossPart(margin.detach().sum(), count, (margin > 0).sum()),
            SCORE: LossPart(scores.detach().sum(), 2 * count),
        }
        return Losses(total, loss.detach()[:, None], out.notes, parts)


def asked_of_answers(rows: Rows, device: torch.device) -> dict[str, Any]:
    """What the one pass over the answers of `AnswerRows`, one behind the other, is given."""
    ids, mask = (on(device, each.reshape(-1, each.shape[-1])) for each in (rows.ids, rows.mask))
    return {"input_ids": ids, "attention_mask": mask.long(), "heads": (RewardModel.head,)}


def scores_of(out: Output, rows: Rows) -> Tensor:
    """What the head says of each answer [exchange, answer], in float32."""
    return exact(out.logits).view(rows.ids.shape[:2])


def no_score(spec: ModelSpec) -> str | None:
    """Why a model says no number of a conversation, and what does; None: it does."""
    if spec.encoder is not None:
        return "it has an encoder, and no template makes one text of both sides; use a decoder, or an encoder alone"
    head = head_called(RewardModel.head, spec)
    if head is None or head.table is None or head.pool is None or head.table.rows != 1:
        return (
            f"it has no head called {RewardModel.head} that says one number of a text; `anyformer train` puts one on by itself, "
            "and anyformer.with_classifier(spec, 1) in Python"
        )
    return None
