"""Whether two runs of text belong together, beside masked words. BERT: arXiv:1810.04805, section 3.1; ALBERT: 1909.11942."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.by_segment import BySegmentSpec
from anyformer.layers.embedding import SegmentsSpec
from anyformer.recipe import SentencePairs
from anyformer.spec import ModelSpec
from anyformer.training.objectives.causal.loss import inputs_of
from anyformer.training.objectives.cross_entropy import cross_entropy
from anyformer.training.objectives.masked.loss import MaskedObjective
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Rows, on

CLASSES = 2  # 0: the runs stand so in the text; 1: they don't


class SentenceObjective:
    """For encoders with a head that tells two classes of rows apart; rows are `noise.sentences.SentenceRows`.

    The loss is the mean over hidden tokens plus the mean over rows; `each` is of the hidden tokens.
    """

    def __init__(self, said: SentencePairs, spec: ModelSpec) -> None:
        self.said, self.types = said, has_token_types(spec)

    def refuses(self, spec: ModelSpec) -> str | None:
        if reason := MaskedObjective().refuses(spec):
            return reason
        head = next((head for head in spec.heads if head.name == self.said.head), None)
        if head is None:
            return (
                f"it has no head {self.said.head!r} for the {self.said.said}; "
                "families.heads.fitted(spec, objective) gives it one"
            )
        if head.pool is None or head.table is None or head.table.rows != CLASSES:
            return f"its head {self.said.head!r} does not tell {CLASSES} classes of rows apart; pool, with a table of {CLASSES}"
        return None

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        inputs = inputs_of(rows, by.device)
        if self.types:
            inputs["token_type_ids"] = on(by.device, rows.token_types)
        # Asked for logits is only the head of the pairs, unless the other has layers of its own to run.
        heads = [self.said.head] if by.head.layers is None else [by.head.spec.name, self.said.head]
        out = by.forward(**inputs, heads=heads, dropout=by.dropout)
        total, each = cross_entropy(by.head, out.read_by(by.head), on(by.device, rows.labels), by.options)
        classes = on(by.device, rows.apart)[:, 0]
        logits = out.outputs[self.said.head].float()
        nats = F.cross_entropy(logits, classes, reduction="none")
        # The sum of a batch is divided by its hidden tokens, be it computed in one piece or in several.
        share = on(by.device, rows.labels_a_row)[:, 0].to(nats.dtype)
        right = (logits.argmax(1) == classes).sum()
        part = LossPart(nats.detach().sum(), _count(classes), right)
        return Losses(total + (nats * share).sum(), each, out.notes, {self.said.said: part})


def has_token_types(spec: ModelSpec) -> bool:
    """Whether a model tells runs of text apart by token_type_ids; one of a single type must not be given any."""
    tables = [value for value in spec.stack.nested() if isinstance(value, SegmentsSpec)]
    others = any(isinstance(value, BySegmentSpec) for value in spec.stack.nested())
    return all(table.n_segments >= CLASSES for table in tables) and (bool(tables) or others)


def _count(classes: Tensor) -> Tensor:
    return torch.tensor(len(classes), device=classes.device)
