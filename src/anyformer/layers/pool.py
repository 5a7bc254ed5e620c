"""One vector a row: its first token's ([CLS], Devlin et al. 2018, arXiv:1810.04805), its last's, or their mean.

The mean is Sentence-BERT's (Reimers & Gurevych 2019, arXiv:1908.10084, section 3). Padding counts for nothing on either side.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.layers.execution import exact_dtype
from anyformer.layers.part import Part
from anyformer.layers.tokens import Tokens
from anyformer.spec import MapSpec, PoolSpec, Positive


class FirstTokenSpec(PoolSpec):
    """The vector of a row's first real token."""


class FirstToken(Part[FirstTokenSpec]):
    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """[batch, width] of x [batch, token, width]."""
        if tokens.document is None:
            return x[:, 0]
        return _row_at(x, (tokens.document > 0).int().argmax(1))


class LastTokenSpec(PoolSpec):
    """The vector of a row's last real token, the one of a decoder that has seen all."""

    needs_all = False


class LastToken(Part[LastTokenSpec]):
    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """[batch, width] of x [batch, token, width]."""
        if tokens.document is None:
            return x[:, -1]
        return _row_at(x, tokens.n - 1 - (tokens.document > 0).int().flip(1).argmax(1))


class MeanTokensSpec(PoolSpec):
    """The mean of the vectors of a row's real tokens; 0 for a row without one."""


class MeanTokens(Part[MeanTokensSpec]):
    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """[batch, width] of x [batch, token, width]."""
        if tokens.document is None:
            return x.mean(1)
        real = (tokens.document > 0)[..., None]
        # A sum of many goes beyond float16.
        return ((x * real).sum(1, dtype=exact_dtype(x)) / real.sum(1).clamp(min=1)).to(x.dtype)


class UnitLengthSpec(MapSpec):
    """x / |x|, so that products are cosines; lengths below `least` count as that."""

    least: Positive = 1e-12


class UnitLength(Part[UnitLengthSpec]):
    def forward(self, x: Tensor) -> Tensor:
        """The x […, width] at length 1."""
        return F.normalize(x, dim=-1, eps=self.spec.least)


def _row_at(x: Tensor, column: Tensor) -> Tensor:
    """[batch, width]: x [batch, token, width] at one column [batch or 1] of each row."""
    rows = x.shape[0]  # len() would be a number, and an exported graph of that many rows
    return x[torch.arange(rows, device=x.device), column.expand(rows)]
