"""Activation sparsity: of a token's features only the largest go on, found without sorting, as if they were normal (Gemma 3n).

"Statistical top-k": You et al. 2025, arXiv:2506.06644, section 3.
"""

from __future__ import annotations

from statistics import NormalDist

from torch import Tensor
from torch.nn import functional as F


def largest(x: Tensor, share: float) -> Tensor:
    """How far the features of x […, width] lie above mean + deviation · Φ⁻¹(share), 0 for those below: about that share."""
    cutoff = x.mean(-1, keepdim=True) + x.std(-1, keepdim=True, correction=0) * NormalDist().inv_cdf(share)
    return F.relu(x - cutoff)
