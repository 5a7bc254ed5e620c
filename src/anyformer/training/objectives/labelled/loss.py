"""Classification, regression and token classification: what a head of its own says of a text, or of each of its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import UsageError
from anyformer.families import with_classifier
from anyformer.layers.cross_entropy import losses_of
from anyformer.layers.distillation import TeacherAnswers
from anyformer.layers.embedding import n_segments
from anyformer.layers.execution import exact
from anyformer.model import Output
from anyformer.recipe import Recipe
from anyformer.spec import HeadSpec, ModelSpec
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives.architecture import head_called
from anyformer.training.objectives.labelled import Labelled
from anyformer.training.objectives.objective import LossContext, Losses, Objective, Teacher, from_teacher, on


class LabelledObjective(Objective[Labelled]):
    """For models with a head for it; rows are `text.labelled.LabelledRows`.

    A model with an encoder reads the text with both stacks: the decoder's is the encoder's, one place later (BART,
    arXiv:1910.13461, section 3.1).
    """

    def refuses(self) -> str | None:
        named = self.said.head
        head = head_called(named, self.spec)
        if head is None or head.table is None:
            return (
                f"it has no head called {named} that says so; `anyformer train` puts one on by itself, and "
                f"anyformer.with_classifier(spec, n, {named!r}) in Python"
            )
        return self._misfit(head, head.table.rows)

    def _misfit(self, head: HeadSpec, rows: int) -> str | None:
        if self.said.labels == "words":
            if head.pool is not None:
                return f"its head {head.name} gives one answer a row; give it one without a pool"
            if self.spec.encoder is not None:
                return "its decoder does not stand where the words do; use an encoder or a decoder"
        elif head.pool is None:
            return f"its head {head.name} gives an answer for each token; give it one with a pool"
        if (rows == 1) != (self.said.labels == "numbers"):
            wanted = "1 row, for the number" if self.said.labels == "numbers" else "2 or more, one for each class"
            return f"its head {head.name} has {rows} row{'s' * (rows > 1)}; {self.said.kind} needs {wanted}"
        return None

    @classmethod
    def with_head(cls, said: Labelled, spec: ModelSpec, labels: Sequence[str] | None) -> ModelSpec:
        return spec if labels is None else with_classifier(spec, len(labels) or 1, said.head)

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        head, wanted = head_called(self.said.head, self.spec), len(data.labels or ()) or 1
        rows = head.table.rows if head and head.table else 0
        if rows != wanted:
            raise UsageError(
                f"the model's head {self.said.head} has {rows} rows and there are {wanted} labels; give it one for each "
                f"(anyformer.with_classifier(spec, {wanted}, {self.said.head!r}))"
            )

        if self.said.labels == "numbers":
            self.refuse_of_classes(recipe)

    def scores(self, by: LossContext, rows: Rows) -> Tensor:
        """The head's scores [batch, rows], of words [batch, token, rows], in float32."""
        return by.forward(**self.asked(rows, by.device), dropout=by.dropout).logits.float()

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        ids, mask = on(device, rows.input_ids), on(device, rows.document)
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "heads": (self.said.head,)}
        if n_types := n_segments(self.spec):
            given["token_type_ids"] = on(device, rows.types).clamp(max=n_types - 1)
        if self.spec.encoder is not None:
            given |= {"decoder_input_ids": on(device, rows.shifted), "decoder_attention_mask": mask}
        return given

    def losses(self, by: LossContext, out: Output, rows: Rows) -> Losses:
        scores = exact(out.logits)
        if self.said.labels == "numbers":
            squares = (scores - on(by.device, rows.values)).square()
            return Losses(squares.sum(), squares.detach(), out.notes)
        labels = on(by.device, rows.labels)
        total, nats, _ = losses_of(scores.flatten(0, -2), labels.flatten(), by.options)
        return Losses(total, nats.view(labels.shape), out.notes)

    @property
    def has_teacher(self) -> bool:
        return self.said.labels != "numbers"

    def distilled(self, by: LossContext, out: Output, teacher: Teacher, theirs: Output, rows: Rows) -> Losses:
        labels = on(by.device, rows.labels)
        scores, wanted = (exact(each.logits).flatten(0, -2) for each in (out, theirs))
        answers = TeacherAnswers(wanted, teacher.how.weight, teacher.how.temperature)
        total, nats, away = losses_of(scores, labels.flatten(), by.options, answers=answers)
        return Losses(total, nats.view(labels.shape), out.notes, from_teacher(away, labels))
