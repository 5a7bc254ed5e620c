"""The loss of a text written from what noise left of it, with teacher forcing."""

from __future__ import annotations

from anyformer.training.data.feed import Rows
from anyformer.training.objectives.denoising import RestoredText
from anyformer.training.objectives.denoising.noise import noise_for
from anyformer.training.objectives.denoising.prefix import prefix_losses, prefix_refusal
from anyformer.training.objectives.objective import LossContext, Losses, Objective, losses_of_labels, on
from anyformer.training.objectives.seq2seq.loss import decoder_refusal


class RestoringObjective(Objective[RestoredText]):
    """For models with an encoder, and decoders whose masks have a prefix; rows are `NoisyPairs`, several documents in each."""

    noise = staticmethod(noise_for)

    def refuses(self) -> str | None:
        return prefix_refusal(self.spec) if self.spec.encoder is None else decoder_refusal(self.spec)

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        if self.spec.encoder is None:
            return prefix_losses(by, rows)
        inputs = {
            "input_ids": on(by.device, rows.source_ids),
            "attention_mask": on(by.device, rows.source_document),
            "decoder_input_ids": on(by.device, rows.target_ids),
            "decoder_attention_mask": on(by.device, rows.target_document),
        }
        return losses_of_labels(by, inputs, on(by.device, rows.labels))
