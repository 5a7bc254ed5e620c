"""The token shift: a token's features mixed with those of the one before. Peng et al. 2023, arXiv:2305.13048, section 3.1."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anyformer.layers.part import Part
from anyformer.spec import NotNegative, PartSpec, Place, Weight


class TokenShiftSpec(PartSpec):
    """μ ⊙ x_t + (1 - μ) ⊙ x_{t-1}, with zeros before the first token of a document."""

    power: NotNegative = 1.0  # the i-th of d numbers μ starts as (i / d)^power + offset, i from 0 (appendix E)
    offset: NotNegative = 0.0

    def weights(self, place: Place) -> Mapping[str, Weight | None]:
        (d,) = place.shape
        start = tuple((i / d) ** self.power + self.offset for i in range(d))
        return {"weight": Weight((d,), ("d_model",), "gain", fill=start)}


class TokenShift(Part[TokenShiftSpec]):
    weight: Tensor

    def forward(self, before: Tensor, change: Tensor) -> Tensor:
        """[batch, step, d_model] of the tokens before of that shape, and of what each differs from them."""
        return torch.addcmul(before, change, self.weight)
