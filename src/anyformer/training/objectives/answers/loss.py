"""The losses of answers: Ouyang et al. 2022 (InstructGPT), arXiv:2203.02155, section 3.5; and of two, by `preferred`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.cross_entropy import cross_entropy
from anyformer.model import Output
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED
from anyformer.training.data.examples import read_by_length
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives.answers import CHOSEN, MARGIN, SFT, ComparedAnswers, PreferenceSpec
from anyformer.training.objectives.answers.data import AnswerObjective
from anyformer.training.objectives.answers.encoded import EncodedConversations
from anyformer.training.objectives.answers.preferences import EncodedPreferences, PreferenceData, PreferenceRows
from anyformer.training.objectives.answers.preferred import AnswerPairs, preferred
from anyformer.training.objectives.causal import CausalLM
from anyformer.training.objectives.causal.loss import CausalObjective
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Over, on, tensor

REFERENCE = "reference"  # of what a run notes before its first step
C = TypeVar("C", bound=ComparedAnswers)


class SFTObjective(AnswerObjective[SFT]):
    """For decoders; rows are `text.Batch`, a text each, with labels where an answer is."""

    encoded: ClassVar = EncodedConversations

    def refuses(self) -> str | None:
        return no_decoder(self.spec)


class ComparedObjective(AnswerObjective[C]):
    """Of answers that are compared with each other."""

    @property
    def one_pass(self) -> bool:
        return False  # it tells two texts of a pass apart, and may ask the model before the first step

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        self.refuse_of_classes(recipe)


class PreferenceObjective(ComparedObjective[PreferenceSpec]):
    """For decoders; rows are `PreferenceRows`. Until a run begins, answers are compared as if all had been alike to the model."""

    encoded: ClassVar = EncodedPreferences

    def refuses(self) -> str | None:
        return no_decoder(self.spec)

    def begin(self, recipe: Recipe, data: TrainingData, over: Over) -> None:
        if not self.said.has_reference:
            return
        assert isinstance(data, PreferenceData)
        parts = [pairs for pairs in (data.encoded(recipe), data.unseen(recipe)) if pairs is not None]
        n = sum(map(len, parts))

        def batches() -> Iterator[PreferenceRows]:
            for pairs in parts:
                for numbers in read_by_length(pairs.lengths, recipe.batch_tokens):
                    yield pairs.batch(numbers)

        def said(by: LossContext, rows: Rows) -> Tensor:
            found = torch.zeros(n, 2, dtype=torch.float64)
            nats = self._nats(by, by.forward(**self.asked(rows, by.device)), rows)
            found[tensor(rows.number)[:, 0]] = -nats.cpu().double()
            return found

        self.told = {REFERENCE: over(batches(), said)}

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        ids, mask = (each.reshape(-1, each.shape[-1]) for each in (rows.ids, rows.mask))
        return asked_of(ids, mask, device)

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        """The losses; `each` is of a pair. An answer's tokens are weighed by how the loss of its pair goes with their nats, so
        that their gradient is that of the pair's and no logits are kept."""
        predicted = tensor(rows.predicted)
        tokens = (predicted != NOT_PREDICTED).sum(-1)
        learns = torch.is_grad_enabled()
        with torch.no_grad():
            nats = self._nats(by, out, rows)
        with torch.set_grad_enabled(learns):
            nats.requires_grad_(learns)
            margin, loss = preferred(self.said, AnswerPairs(-nats, self._reference(rows).to(nats), tokens.to(nats)))
        total = loss.sum().detach()
        if learns:  # that sum, with the gradient of the weighed one
            (slopes,) = torch.autograd.grad(loss.sum(), nats)
            weights = slopes[:, :, None].expand(predicted.shape).flatten(0, 1)
            weighed, _ = cross_entropy(by.head, out.last_hidden_state, predicted.flatten(0, 1), weights=weights)
            total = weighed + (total - weighed).detach()
        margin, pairs = margin.detach(), torch.tensor(len(margin), device=margin.device)
        parts = {
            CHOSEN: LossPart(nats.detach()[:, 0].sum(), tokens[:, 0].sum()),
            MARGIN: LossPart(margin.sum(), pairs, (margin > 0).sum()),
        }
        return Losses(total, -F.logsigmoid(margin)[:, None], out.notes, parts)

    def _nats(self, by: LossContext, out: Output, rows: Rows) -> Tensor:
        """-log p [pair, 2] of both answers."""
        predicted = tensor(rows.predicted)
        _, nats = cross_entropy(by.head, out.last_hidden_state, predicted.flatten(0, 1))
        return nats.sum(-1).view(predicted.shape[:2])

    def _reference(self, rows: Rows) -> Tensor:
        """Log p_0 [pair, 2] of both answers."""
        if REFERENCE not in self.told:
            return torch.zeros(rows.labels.shape[0], 2)
        return self.told[REFERENCE][tensor(rows.number)[:, 0]]


def asked_of(ids: np.ndarray, mask: np.ndarray, device: torch.device) -> dict[str, Any]:
    """What a pass over texts side by side [text, token] is given, whose head is asked afterwards."""
    attended = None if mask.all() else on(device, mask).long()
    return {"input_ids": on(device, ids), "attention_mask": attended, "output_logits": False}


def no_decoder(spec: ModelSpec) -> str | None:
    """Why a model writes no answers behind what is asked; None: it does."""
    if spec.encoder is not None:
        return "it has an encoder, and no template makes one text of both sides; use Seq2Seq (--objective seq2seq)"
    return CausalObjective(CausalLM(), spec).refuses()
