"""Permutation language modelling: Yang et al. 2019 (XLNet), arXiv:1906.08237, sections 2.2 and 2.3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anyformer.text.noise.spans import noise_spans


class Permuted(NamedTuple):
    """A factorisation order of a text, each [token]."""

    order: np.ndarray  # int64: when a token comes in the order; a token is predicted from those that come before it
    predicted: np.ndarray  # bool: the last of the order


def permuted(n: int, rng: np.random.Generator, *, share: float = 1 / 6, mean_length: float = 3.0) -> Permuted:
    """Return a random order of n tokens whose last round(share · n), in runs of neighbours, are to be predicted.

    Partial prediction with 1 / K = share (section 2.3; K of 6 or 7). Runs of neighbours are predicted one token after the
    other from left to right or in any order: which is the permutation's matter.
    """
    predicted = noise_spans(n, rng, rate=share, mean_length=mean_length)
    first, last = (rng.permutation(np.flatnonzero(part)) for part in (~predicted, predicted))
    order = np.empty(n, dtype=np.int64)
    order[np.concatenate([first, last])] = np.arange(n)
    return Permuted(order, predicted)
