"""Sentence embeddings from in-batch negatives: van den Oord et al. 2018 (InfoNCE), arXiv:1807.03748, equation 4; Henderson et
al. 2017, arXiv:1705.00652, section 4.4; Reimers & Gurevych 2019 (Sentence-BERT), arXiv:1908.10084."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import UsageError
from anyformer.families.heads import EMBEDDING, sentence_embedding
from anyformer.layers import LastTokenSpec, MeanTokensSpec
from anyformer.layers.causality import later_tokens_seen
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec, PoolSpec
from anyformer.training.data.feed import Rows, TrainingData
from anyformer.training.objectives.architecture import head_called
from anyformer.training.objectives.contrastive import Contrastive
from anyformer.training.objectives.contrastive.data import ContrastData
from anyformer.training.objectives.objective import LossContext, Losses, Objective, on


class ContrastiveObjective(Objective[Contrastive]):
    """For encoders and decoders with a head that gives one vector a row; rows are `ContrastRows`."""

    def refuses(self) -> str | None:
        if self.spec.encoder is not None:
            return "it is an encoder and a decoder, whose heads read the decoder; use an encoder or a decoder alone"
        head = head_called(EMBEDDING, self.spec)
        if head is None:
            return f"it has no head {EMBEDDING!r} that makes one vector of a text; put a sentence_embedding() there"
        if head.pool is None:
            return f"its head {EMBEDDING!r} gives a vector for each token; give it a pool"
        return None

    @classmethod
    def with_head(cls, said: Contrastive, spec: ModelSpec, labels: Sequence[str] | None) -> ModelSpec:
        if spec.encoder is not None or head_called(EMBEDDING, spec):
            return spec
        return spec.but(heads=(sentence_embedding(usual_pool(spec)),), ahead=())

    def check(self, recipe: Recipe, data: TrainingData) -> None:
        if not isinstance(data, ContrastData):
            raise UsageError(f"{self.said.kind} is trained on ContrastData, not on {type(data).__name__}")
        self.refuse_of_classes(recipe)

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        """The losses; `each` is of finding the target. A text that stands twice is no negative of its twin."""
        ids = on(by.device, np.concatenate((rows.source_ids, rows.target_ids)))
        mask = np.concatenate((rows.source_mask, rows.target_mask))
        attended = None if mask.all() else on(by.device, mask).long()
        out = by.forward(ids, attended, heads=(EMBEDDING,), dropout=by.dropout)
        group, labels = on(by.device, rows.group), on(by.device, rows.labels)[:, 0]
        alike = (group[:, None] == group[None]).any(-1).fill_diagonal_(False)
        with torch.autocast(by.device.type, enabled=False):
            source, target = unit(out.outputs[EMBEDDING]).chunk(2)
            similar = (source @ target.T / self.said.temperature).masked_fill(alike, -torch.inf)
            each, back = (F.cross_entropy(logits, labels, reduction="none") for logits in (similar, similar.T))
        total = (each.sum() + back.sum()) / 2 if self.said.symmetric else each.sum()
        return Losses(total, each.detach()[:, None], out.notes)


def unit(vectors: Tensor) -> Tensor:
    """Vectors [text, width] at length 1, in float32 at least: a temperature of 0.05 makes 20 of a cosine's 1."""
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)


def usual_pool(spec: ModelSpec) -> PoolSpec:
    """How an architecture's tokens become one vector: their mean where each sees all, else the last one's."""
    return MeanTokensSpec() if later_tokens_seen(spec.stack) is not None else LastTokenSpec()
