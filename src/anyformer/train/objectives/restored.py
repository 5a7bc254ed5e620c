"""A text written from what noise left of it, with teacher forcing: span corruption, denoising, prefixes and their mixtures."""

from __future__ import annotations

import torch

from anyformer.layers.head import Head
from anyformer.layers.tokens import Dropout
from anyformer.spec import ModelSpec
from anyformer.train.cross_entropy import PLAIN, LossOptions
from anyformer.train.objectives.objective import Forward, Losses, Rows, losses_of_labels, on
from anyformer.train.objectives.seq2seq import Seq2SeqObjective


class RestoredObjective:
    """For models with an encoder; rows are `noise.NoisyPairs`, several documents in each."""

    def refuses(self, spec: ModelSpec) -> str | None:
        if spec.encoder is None:
            return "it has no encoder to read what noise left; use CausalLM for a decoder, MaskedLM for an encoder"
        return Seq2SeqObjective().refuses(spec)

    def __call__(
        self,
        forward: Forward,
        head: Head,
        rows: Rows,
        device: torch.device,
        dropout: Dropout | None,
        options: LossOptions = PLAIN,
    ) -> Losses:
        inputs = {
            "input_ids": on(device, rows.source_ids),
            "attention_mask": on(device, rows.source_document),
            "decoder_input_ids": on(device, rows.target_ids),
            "decoder_attention_mask": on(device, rows.target_document),
        }
        return losses_of_labels(forward, head, inputs, on(device, rows.labels), dropout, options)
