"""Sequence to sequence with teacher forcing: each token of the target from the source and the true tokens before it."""

from __future__ import annotations

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import ModelSpec
from anyformer.training.objectives.objective import LossContext, Losses, Rows, losses_of_labels, on


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

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        inputs = {
            "input_ids": on(by.device, rows.source_ids),
            "attention_mask": on(by.device, rows.source_mask).long(),
            "decoder_input_ids": on(by.device, rows.target_ids),
            "decoder_attention_mask": on(by.device, rows.target_mask).long(),
        }
        return losses_of_labels(by, inputs, on(by.device, rows.labels))
