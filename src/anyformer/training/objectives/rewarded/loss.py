"""Learning from rewards: REINFORCE on answers that the model has just written, each beside the others of its group.

Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 4.1; DeepSeek-AI 2025 (R1), arXiv:2501.12948, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import UsageError
from anyformer.generation import GREEDY, Sampling
from anyformer.generation.compiled import next_logits
from anyformer.generation.decode import Decoding, growing_cache
from anyformer.generation.prompt import padded, parting
from anyformer.generation.text import GrowingText
from anyformer.layers.context import Notes
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.model import Transformer
from anyformer.recipe import DropoutSpec, Recipe
from anyformer.text import NOT_PREDICTED, Tokenizer
from anyformer.text.prompts import Answered
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives.answers.encoded import side_by_side
from anyformer.training.objectives.answers.loss import asked_of, no_decoder
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Objective, from_teacher, tensor
from anyformer.training.objectives.rewarded import ENDED, LENGTH, REWARD, RewardedSpec, worth
from anyformer.training.objectives.rewarded.advantages import advantages
from anyformer.training.objectives.rewarded.data import LIKELIEST, PromptRows

ENTROPY = "entropy"  # the part of the losses that is no loss: nats of a token that was drawn
ALIKE = "alike"  # the same: of prompts, those all of whose answers are worth the same, from which nothing is learnt


class Written(NamedTuple):
    """An answer: its tokens, with the one that ends it, if any does, and what they say."""

    ids: list[int]
    text: str
    ended: bool


class RewardedObjective(Objective[RewardedSpec]):
    """For decoders; rows are `PromptRows`."""

    writes = True

    def refuses(self) -> str | None:
        return no_decoder(self.spec)

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

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        """The losses of answers that are written here; `each` is of an answer. What is not drawn, is not learnt from."""
        model, most = by.forward, self.said.max_new_tokens
        assert isinstance(model, Transformer)
        assert self.tokenizer is not None
        answers = written(model, self.tokenizer, rows, most)
        exchanges = np.repeat(rows.exchange[:, 0], rows.labels.shape[1])
        values = [worth(self.said.rewards, each.text, row.facts) for each, row in zip(answers, exchanges, strict=True)]
        rewards, highest = torch.tensor(values, device=by.device).view(rows.labels.shape), self.said.highest
        n, tokens = torch.tensor(rewards.numel()), torch.tensor([len(each.ids) for each in answers]).view_as(rewards)
        parts = {
            REWARD: LossPart(rewards.sum(), n, (rewards >= highest).sum()),
            LENGTH: LossPart(tokens.sum(), n),
            ENDED: LossPart(torch.tensor(sum(each.ended for each in answers)), n),
        }
        each = highest - rewards
        if (rows.seed == LIKELIEST).all():
            return Losses(each.sum(), each, parts=parts)
        counted = advantages(self.said, rewards, tokens.to(rewards))
        alike = (rewards == rewards[:, :1]).all(1)
        parts[ALIKE] = LossPart(alike.sum(), torch.tensor(len(alike)))
        total, notes, further = self._learnt(by, rows, answers, counted)
        return Losses(total, each, notes, {**parts, **further})

    def _learnt(
        self, by: LossContext, rows: PromptRows, answers: list[Written], counted: Tensor
    ) -> tuple[Tensor, Sequence[Notes], Mapping[str, LossPart]]:
        """(what is minimised, the notes of the pass, further parts) where tokens of answers count so much [prompt, answer]."""
        group = rows.labels.shape[1]
        texts = [
            Answered(np.array([*before, *each.ids]), np.arange(len(before) + len(each.ids)) >= len(before))
            for i, each in enumerate(answers)
            for before in [rows.ids[i // group, 0, : rows.n[i // group, 0]]]
        ]
        ids, mask, labels = side_by_side(texts)
        predicted = tensor(labels)
        asked = asked_of(ids, mask, by.device)
        out = by.forward(**asked, dropout=by.dropout)
        hidden, weights = out.read_by(by.head), counted.view(-1, 1).expand(predicted.shape)
        parts: Mapping[str, LossPart] = {}
        if by.teacher is not None:
            share, theirs = by.teacher.how.weight, by.teacher.model
            with torch.no_grad():
                said = theirs(**asked).read_by(theirs.head())
                likelier = (
                    cross_entropy(by.head, hidden, predicted)[1] - cross_entropy(theirs.head(), said, predicted)[1]
                )
            tokens = (predicted != NOT_PREDICTED).sum(1, keepdim=True).to(likelier)
            # exp(d) - d - 1, d = log p of the teacher - log p: its slope by -log p is exp(d) - 1 (DeepSeekMath, equation 4).
            weights = (1 - share) * weights + share * torch.expm1(likelier) / tokens
            parts = from_teacher((torch.expm1(likelier) - likelier).sum(), predicted)
        total, nats = cross_entropy(by.head, hidden, predicted, weights=weights)
        entropy = LossPart(nats.detach().sum(), (predicted != NOT_PREDICTED).sum())
        return total, out.notes, {ENTROPY: entropy, **parts}


def written(model: Transformer, tokenizer: Tokenizer, rows: PromptRows, most: int) -> list[Written]:
    """Answers of so many tokens at most, those to one prompt behind each other; each the same alone or among others."""
    asked, group = [ids[:n].tolist() for ids, (n,) in zip(rows.ids[:, 0], rows.n, strict=True)], rows.seed.shape[1]
    device = next(model.parameters()).device
    ids, mask = padded(asked, device)
    drawn = bool((rows.seed != LIKELIEST).all())
    answers: list[list[int]] = [[] for _ in rows.seed.ravel()]
    with torch.autocast(device.type, enabled=False):  # which would cast all weights for each token
        steps = Decoding(
            model,
            ids.repeat_interleave(group, 0),
            None if mask is None else mask.repeat_interleave(group, 0),
            max_new_tokens=most,
            sampling=Sampling(temperature=1.0) if drawn else GREEDY,
            seed=rows.seed.ravel().tolist() if drawn else 0,
            closing_ids=tokenizer.closing_ids,
            cache=_read_once(model, ids, mask, group, ids.shape[1] + most) or True,
        )
        for step in steps:
            for row, token in step.items():
                answers[row].append(token)
    texts = (GrowingText(tokenizer, asked[i // group], (), 0, None).whole(own) for i, own in enumerate(answers))
    return [Written(own, text.text, text.ended_by == "end_of_text") for own, text in zip(answers, texts, strict=True)]


def _read_once(model: Transformer, ids: Tensor, mask: Tensor | None, group: int, longest: int) -> KVCache | None:
    """A cache of `group` rows for each prompt [prompt, token], of all but its last token; None where nothing is won by it."""
    width = ids.shape[1]
    least = width if mask is None else int(mask.sum(1).min())
    if group == 1 or least == 1 or parting(model.spec, width) is not None:
        return None
    cache = growing_cache(model, len(ids), width, longest)
    before = None if mask is None else mask[:, :-1]
    with torch.inference_mode():
        next_logits(model, ids[:, :-1], None, cache, before)
        cache.select([i for i in range(len(ids)) for _ in range(group)])
    return cache
