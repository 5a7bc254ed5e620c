"""The losses of answers alone: Ouyang et al. 2022 (InstructGPT), arXiv:2203.02155, section 3.5."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.errors import UsageError
from anyformer.recipe import Recipe
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives.answers import SFT
from anyformer.training.objectives.answers.data import ConversationData
from anyformer.training.objectives.causal import CausalLM
from anyformer.training.objectives.causal.loss import CausalObjective, inputs_of
from anyformer.training.objectives.objective import Objective


class SFTObjective(Objective[SFT]):
    """For decoders; rows are `text.Batch`, a text each, with labels where an answer is."""

    def refuses(self) -> str | None:
        if self.spec.encoder is not None:
            return "it has an encoder, and no template makes one text of both sides; use Seq2Seq (--objective seq2seq)"
        return CausalObjective(CausalLM(), self.spec).refuses()

    def by_place(self) -> bool:
        return True

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        if not isinstance(data, ConversationData):
            raise UsageError(f"{self.said.kind} is trained on ConversationData, not on {type(data).__name__}")

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        return {**inputs_of(rows, device, alone=alone), "output_logits": False}
