"""Whether two tokens are of one segment, as a summand of the scores. Yang et al. 2019, arXiv:1906.08237, section 2.5."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.layers.part import Part
from anyformer.layers.scores import Content, ScoreSpec
from anyformer.layers.tokens import Tokens
from anyformer.spec import Cost, Place, Weight, Workload


class BySegmentSpec(ScoreSpec):
    """(q + s)·e, scaled as q·k is: e is one of two vectors a head, for keys of the query's segment and for others.

    Rows of one segment, which token_type_ids do not divide, have nothing added: cost and memory are theirs.
    """

    reads_content = True

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        n_heads, width = place.shape
        table = Weight((2, n_heads, width), ("segment", "heads", "head_dim"), "table")
        return {"weight": table, "bias_segment": Weight((n_heads, width), ("heads", "head_dim"), "bias", fill=0.0)}

    def cost(self, place: Place, workload: Workload) -> Cost:
        return Cost({})


class BySegment(Part[BySegmentSpec]):
    weight: Tensor
    bias_segment: Tensor

    def forward(self, content: Content, query: Tokens, key: Tokens) -> Tensor | None:
        """Scores [batch, heads, query, key]; None for rows of one segment."""
        if query.segment is None or key.segment is None:
            return None
        both = (content.q + self.bias_segment[:, None]) @ self.weight.permute(1, 2, 0) * content.scale
        return torch.where(query.segment == key.segment, both[..., :1], both[..., 1:])
