"""Multi-token prediction: the next token and further ones. DeepSeek-V3: arXiv:2412.19437, section 2.2."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import ModelSpec
from anyformer.text import NOT_PREDICTED
from anyformer.training.cross_entropy import cross_entropy
from anyformer.training.objectives.causal import CausalObjective, inputs_of
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Rows, on


class MultiTokenObjective:
    """For decoders with modules for further tokens; rows are `text.Batch`.

    The k-th loss is a sum over the tokens whose document goes on for k more, and like the loss of the next token it is
    divided by the number of all tokens predicted (equation 24).
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def refuses(self, spec: ModelSpec) -> str | None:
        if not spec.ahead:
            return "it has no module that predicts further tokens; give the specification `ahead`, or use CausalLM"
        if reason := CausalObjective().refuses(spec):
            return reason
        mask = later_tokens_seen(*spec.ahead)
        if mask is not None:
            return f"the {mask} mask of what predicts further tokens lets a token see them; use a causal mask"
        return None

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        """The losses; `each` is of the next token alone, so that it compares with other objectives."""
        out = by.forward(**inputs_of(rows, by.device), output_logits=False, output_ahead=True, dropout=by.dropout)
        labels, document = on(by.device, rows.labels), on(by.device, rows.document)
        total, each = cross_entropy(by.head, out.last_hidden_state, labels, by.options)
        sums, parts = [], {}
        for k, hidden in enumerate(out.ahead, 1):
            later = labels_ahead(labels, document, k)
            loss, nats = cross_entropy(by.head, hidden, later, by.options)
            sums.append(loss)
            parts[f"ahead {k}"] = LossPart(nats.sum(), (later != NOT_PREDICTED).sum())
        return Losses(total + self.weight * torch.stack(sums).mean(), each, out.notes, parts)


def labels_ahead(labels: Tensor, document: Tensor, k: int) -> Tensor:
    """What each token but a row's last k is to predict k places after its label, within its document."""
    return labels[:, k:].masked_fill(document[:, k:] != document[:, :-k], NOT_PREDICTED)
