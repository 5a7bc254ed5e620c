"""The losses of the next token, and of further ones: DeepSeek-V3, arXiv:2412.19437, section 2.2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.model import Output
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives import OBJECTIVES
from anyformer.training.objectives.architecture import no_vocabulary_head, usual
from anyformer.training.objectives.causal import CausalLM, MultiToken
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Objective, inputs_of, tensor


class CausalObjective(Objective[CausalLM]):
    """For decoders; rows are `text.Batch`."""

    def refuses(self) -> str | None:
        spec = self.spec
        if spec.encoder is not None:
            pairs = "on pairs of texts (--source and --target) Seq2Seq (--objective seq2seq)"
            return f"it has an encoder; use SpanCorruption (--objective span-corruption), or {pairs}"
        mask = later_tokens_seen(spec.stack, *spec.heads[:1])
        if mask is not None:
            return f"its {mask} mask lets a token see the ones it has to predict; use {_remedy(spec)}"
        return no_vocabulary_head(spec)


def _remedy(spec: ModelSpec) -> str:
    """The objective that suits a model which is no decoder, as data and as an option; a causal mask makes it one."""
    suits = usual(spec)
    names = [name for name, known in OBJECTIVES.items() if known.kind == suits.kind and not isinstance(known, CausalLM)]
    return " ".join([*(f"{suits.kind} (--objective {name}), or" for name in names), "a causal mask"])


class MultiTokenObjective(Objective[MultiToken]):
    """For decoders with modules for further tokens; rows are `text.Batch`.

    The k-th loss is a sum over the tokens whose document goes on for k more, and like the loss of the next token it is
    divided by the number of all tokens predicted (equation 24).
    """

    trains_ahead = True

    def refuses(self) -> str | None:
        if not self.spec.ahead:
            return "it has no module that predicts further tokens; give the specification `ahead`, or use CausalLM"
        if reason := CausalObjective(CausalLM(), self.spec).refuses():
            return reason
        mask = later_tokens_seen(*self.spec.ahead)
        if mask is not None:
            return f"the {mask} mask of what predicts further tokens lets a token see them; use a causal mask"
        return None

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        n = len(self.spec.ahead)
        if recipe.seq_len <= n:
            raise UsageError(
                f"rows of {recipe.seq_len} tokens have nothing {n} further ahead; use a --seq-len above it"
            )

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        return {**inputs_of(rows, device, alone=alone), "output_logits": False, "output_ahead": True}

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        """The losses; `each` is of the next token alone, so that it compares with other objectives."""
        labels, document = tensor(rows.labels), tensor(rows.document)
        total, each = cross_entropy(by.head, out.last_hidden_state, labels, by.options)
        sums, parts = [], {}
        for k, hidden in enumerate(out.ahead, 1):
            later = labels_ahead(labels, document, k)
            loss, nats = cross_entropy(by.head, hidden, later, by.options)
            sums.append(loss)
            parts[f"ahead {k}"] = LossPart(nats.sum(), (later != NOT_PREDICTED).sum())
        return Losses(total + self.said.weight * torch.stack(sums).mean(), each, out.notes, parts)


def labels_ahead(labels: Tensor, document: Tensor, k: int) -> Tensor:
    """Labels [batch, token - k], k places after the labels [batch, token], within each document."""
    return labels[:, k:].masked_fill(document[:, k:] != document[:, :-k], NOT_PREDICTED)
