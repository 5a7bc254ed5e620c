"""Activation sparsity: of a token's features only the largest go on, found without sorting, as if they were normal (Gemma 3n).

"Statistical top-k": You et al. 2025, arXiv:2506.06644, section 3.
"""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn import functional as F


def largest(x: Tensor, share: float) -> Tensor:
    """How far the features of x […, width] lie above mean + deviation · Φ⁻¹(share), 0 for those below: about that share."""
    around = x - x.mean(-1, keepdim=True)
    deviation = torch.linalg.vector_norm(around, dim=-1, keepdim=True) * x.shape[-1] ** -0.5
    return F.relu(around - deviation * _quantile(share))


@torch.compiler.assume_constant_result
def _quantile(share: float) -> float:
    return NormalDist().inv_cdf(share)
