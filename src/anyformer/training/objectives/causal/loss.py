"""Causal language modelling: every token from those before it in its document."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.layers.attention import has_prefix
from anyformer.layers.causality import later_tokens_seen
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.causal import CausalLM
from anyformer.training.objectives.objective import LossContext, Losses, Objective, losses_of_labels, on


class CausalObjective(Objective[CausalLM]):
    """For decoders; rows are `text.Batch`."""

    def refuses(self) -> str | None:
        spec = self.spec
        if spec.encoder is not None:
            return "it has an encoder, which needs pairs of texts; use the objective Seq2Seq with --source and --target"
        if not spec.heads:
            return "it has no head that predicts tokens; give the model one"
        mask = later_tokens_seen(spec.stack) or later_tokens_seen(spec.heads[0])
        if mask is not None:
            remedy = "use PrefixLM" if has_prefix(spec) else "use a causal mask"
            return f"its {mask} mask lets a token see the ones it has to predict; {remedy}"
        return None

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        return losses_of_labels(by, inputs_of(rows, by.device, alone=by.memory is None), on(by.device, rows.labels))


def inputs_of(rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Tensor | None]:
    """The model's inputs, each [batch, token]; rows that are one document from end to end need no mask, if they stand `alone`."""
    plain = alone and bool((rows.document == 1).all())
    return {
        "input_ids": on(device, rows.input_ids),
        "attention_mask": None if plain else on(device, rows.document),
        "position_ids": None if plain else on(device, rows.positions),
    }
