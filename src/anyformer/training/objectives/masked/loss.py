"""The loss of masked language modelling, at the hidden places."""

from __future__ import annotations

from anyformer.training.data.feed import Rows
from anyformer.training.objectives.architecture import no_vocabulary_head, not_an_encoder
from anyformer.training.objectives.causal.loss import inputs_of
from anyformer.training.objectives.masked import MaskedLM
from anyformer.training.objectives.masked.noise import MaskedNoise
from anyformer.training.objectives.objective import LossContext, Losses, Objective, losses_of_labels, on


class MaskedObjective(Objective[MaskedLM]):
    """For encoders; rows are `text.Batch` with labels at the hidden places."""

    noise = MaskedNoise.of

    def refuses(self) -> str | None:
        return not_an_encoder(self.spec) or no_vocabulary_head(self.spec, "mlm")

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        return losses_of_labels(by, inputs_of(rows, by.device), on(by.device, rows.labels))
