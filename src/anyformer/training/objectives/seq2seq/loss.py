"""Sequence to sequence with teacher forcing: each token of the target from the source and the true tokens before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from anyformer.errors import UsageError
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.training.data.examples import ExampleData
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives.objective import Objective, on
from anyformer.training.objectives.seq2seq import Seq2Seq


class Seq2SeqObjective(Objective[Seq2Seq]):
    """For models with an encoder; rows are `text.PairBatch`: `target_ids` are begin, then all labels but the last."""

    def refuses(self) -> str | None:
        if self.spec.encoder is None:
            return (
                "it has no encoder to read the source; use the objective CausalLM (--objective causal-lm) on plain text"
            )
        return decoder_refusal(self.spec)

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        if isinstance(data, ExampleData):
            raise UsageError(f"{self.said.kind} is trained on PairData or others, not on {type(data).__name__}")

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        return pairs_of(rows, device, rows.source_mask, rows.target_mask)


def pairs_of(rows: Rows, device: torch.device, source_mask: np.ndarray, target_mask: np.ndarray) -> dict[str, Any]:
    """Targets beside their sources, as a model is given them; masks [batch, token] are 0 at padding, else a document's number."""
    return {
        "input_ids": on(device, rows.source_ids),
        "attention_mask": on(device, source_mask).long(),
        "decoder_input_ids": on(device, rows.target_ids),
        "decoder_attention_mask": on(device, target_mask).long(),
        "output_logits": False,
    }


def decoder_refusal(spec: ModelSpec) -> str | None:
    """Why the decoder beside an encoder cannot learn to write, or None."""
    if not spec.heads:
        return "it has no head that predicts tokens; give the model one"
    if not any(value.reads_memory for value in spec.stack.nested(AttentionSpec)):
        return "its decoder never reads the encoder; give its blocks an attention with reads='memory'"
    mask = later_tokens_seen(spec.stack)
    if mask is not None:
        return f"the {mask} mask of its decoder lets a token see the ones it has to predict; use a causal mask"
    return None
