"""A text written from what noise left of it, with teacher forcing: span corruption, denoising, prefixes and their mixtures."""

from __future__ import annotations

from anyformer.spec import ModelSpec
from anyformer.training.objectives.objective import LossContext, Losses, Rows, losses_of_labels, on
from anyformer.training.objectives.seq2seq.loss import Seq2SeqObjective


class RestoredObjective:
    """For models with an encoder; rows are `noise.NoisyPairs`, several documents in each."""

    def refuses(self, spec: ModelSpec) -> str | None:
        if spec.encoder is None:
            return "it has no encoder to read what noise left; use CausalLM for a decoder, MaskedLM for an encoder"
        return Seq2SeqObjective().refuses(spec)

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        inputs = {
            "input_ids": on(by.device, rows.source_ids),
            "attention_mask": on(by.device, rows.source_document),
            "decoder_input_ids": on(by.device, rows.target_ids),
            "decoder_attention_mask": on(by.device, rows.target_document),
        }
        return losses_of_labels(by, inputs, on(by.device, rows.labels))
