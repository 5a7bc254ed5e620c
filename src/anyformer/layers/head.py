"""Heads: what the last hidden state is turned into."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.embedding import Table
from anyformer.layers.part import Part
from anyformer.spec import HeadSpec


class Head(Part[HeadSpec]):
    transform: Any
    table: Table
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [batch, token, rows] of x [batch, token, width]."""
        for step in self.transform:
            x = step(x)
        logits = F.linear(x, self.table.weight, self.bias)
        if self.spec.scale is not None:
            logits = logits * self.spec.scale.value(self.site.d_model)
        if self.spec.softcap is not None:
            logits = self.spec.softcap * (logits / self.spec.softcap).tanh()
        return logits
