"""Whether two runs of text belong together, beside masked words. BERT: arXiv:1810.04805, section 3.1; ALBERT: 1909.11942."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from anyformer.families.heads import row_classes, with_head
from anyformer.layers import BySegmentSpec
from anyformer.layers.cross_entropy import cross_entropy
from anyformer.layers.embedding import SegmentsSpec
from anyformer.model import Output
from anyformer.spec import ModelSpec
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.architecture import head_called, no_vocabulary_head, not_an_encoder
from anyformer.training.objectives.objective import LossContext, Losses, LossPart, Objective, inputs_of, on, tensor
from anyformer.training.objectives.sentences import SentencePairs
from anyformer.training.objectives.sentences.noise import SentenceNoise

CLASSES = 2  # 0: the runs stand so in the text; 1: they don't


class SentenceObjective(Objective[SentencePairs]):
    """For encoders with a head that tells two classes of rows apart; rows are `sentences.noise.SentenceRows`.

    The loss is the mean over hidden tokens plus the mean over rows; `each` is of the hidden tokens.
    """

    noise = SentenceNoise.of

    def refuses(self) -> str | None:
        if reason := not_an_encoder(self.spec) or no_vocabulary_head(self.spec, "mlm"):
            return reason
        head = head_called(self.said.head, self.spec)
        if head is None:
            return (
                f"it has no head {self.said.head!r} for the {self.said.said}; "
                "training.objectives.objective.with_head_for(spec, objective) gives it one"
            )
        if head.pool is None or head.table is None or head.table.rows != CLASSES:
            return f"its head {self.said.head!r} does not tell {CLASSES} classes of rows apart; pool, with a table of {CLASSES}"
        return None

    @classmethod
    def with_head(cls, said: SentencePairs, spec: ModelSpec, labels: Sequence[str] | None) -> ModelSpec:
        return spec if head_called(said.head, spec) else with_head(spec, row_classes(CLASSES, said.head))

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        inputs = inputs_of(rows, device, alone=alone)
        if has_token_types(self.spec):
            inputs["token_type_ids"] = on(device, rows.token_types)
        # Asked for logits is only the head of the pairs, unless the other has layers of its own to run.
        first = self.spec.heads[0]
        return {**inputs, "heads": [self.said.head] if first.layers is None else [first.name, self.said.head]}

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        total, each = cross_entropy(by.head, out.read_by(by.head), tensor(rows.labels), by.options)
        classes = on(by.device, rows.apart)[:, 0]
        logits = out.outputs[self.said.head].float()
        nats = F.cross_entropy(logits, classes, reduction="none")
        # The sum of a batch is divided by its hidden tokens, be it computed in one piece or in several.
        share = on(by.device, rows.labels_a_row)[:, 0].to(nats.dtype)
        right = (logits.argmax(1) == classes).sum()
        part = LossPart(nats.detach().sum(), torch.tensor(len(classes), device=by.device), right)
        return Losses(total + (nats * share).sum(), each, out.notes, {self.said.said: part})


def has_token_types(spec: ModelSpec) -> bool:
    """Whether a model tells runs of text apart by token_type_ids; one of a single type must not be given any."""
    tables = list(spec.stack.nested(SegmentsSpec))
    others = any(spec.stack.nested(BySegmentSpec))
    return all(table.n_segments >= CLASSES for table in tables) and (bool(tables) or others)
