"""The loss of permutation language modelling, at the blanks."""

from __future__ import annotations

from anyformer.training.data.feed import Rows
from anyformer.training.objectives.architecture import has_two_streams, no_vocabulary_head
from anyformer.training.objectives.objective import LossContext, Losses, Objective, losses_of_labels, on
from anyformer.training.objectives.permuted import PermutedLM
from anyformer.training.objectives.permuted.noise import PermutedNoise


class PermutedObjective(Objective[PermutedLM]):
    """For models of two streams; rows are `PermutedRows`."""

    noise = PermutedNoise.of

    def refuses(self) -> str | None:
        if self.spec.encoder is not None or not has_two_streams(self.spec):
            return "it has no second stream, of blanks that ask for a token without seeing it (XLNet's TwoStreams and Blanks)"
        return no_vocabulary_head(self.spec)

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        inputs = {
            "input_ids": on(by.device, rows.input_ids),
            "attention_mask": on(by.device, rows.document),
            "position_ids": on(by.device, rows.positions),
            "facts": {"order": on(by.device, rows.order), "mark": on(by.device, rows.mark)},
        }
        return losses_of_labels(by, inputs, on(by.device, rows.labels))
