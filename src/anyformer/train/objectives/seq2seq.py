"""Sequence to sequence with teacher forcing: each token of the target from the source and the true tokens before it."""

from __future__ import annotations

import torch

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.head import Head
from anyformer.layers.tokens import Dropout
from anyformer.spec import ModelSpec
from anyformer.train.cross_entropy import PLAIN, LossOptions
from anyformer.train.objectives.objective import Forward, Losses, Rows, later_tokens_seen, losses_of_labels, on


class Seq2SeqObjective:
    """For models with an encoder; rows are `text.PairBatch`: `target_ids` are begin, then all labels but the last."""

    def refuses(self, spec: ModelSpec) -> str | None:
        if spec.encoder is None:
            return "it has no encoder to read the source; use the objective CausalLM on plain text"
        if not spec.heads:
            return "it has no head that predicts tokens; give the model one"
        if not any(isinstance(value, AttentionSpec) and value.reads == "memory" for value in spec.stack.nested()):
            return "its decoder never reads the encoder; give its blocks an attention with reads='memory'"
        mask = later_tokens_seen(spec.stack)
        if mask is not None:
            return f"the {mask} mask of its decoder lets a token see the ones it has to predict; use a causal mask"
        return None

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
            "attention_mask": on(device, rows.source_mask).long(),
            "decoder_input_ids": on(device, rows.target_ids),
            "decoder_attention_mask": on(device, rows.target_mask).long(),
        }
        return losses_of_labels(forward, head, inputs, on(device, rows.labels), dropout, options)
