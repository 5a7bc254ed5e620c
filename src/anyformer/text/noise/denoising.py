"""Noise that the whole text is restored from: Lewis et al. 2020 (BART), arXiv:1910.13461, section 2.2."""

from __future__ import annotations

import numpy as np


def infilled(
    ids: np.ndarray, rng: np.random.Generator, *, mask: int, rate: float = 0.3, mean_length: float = 3.0
) -> np.ndarray:
    """The text with spans, their lengths Poisson-distributed, each replaced by one mask: text infilling.

    About rate · n tokens go; a span of no tokens inserts a mask. Spans never touch, so that each mask stands for one.
    """
    budget, lengths = round(rate * len(ids)), list[int]()
    while budget > 0:
        length = min(int(rng.poisson(mean_length)), budget)
        lengths.append(length)
        budget -= max(1, length)  # what is inserted counts too, or it would go on for ever
    kept = len(ids) - sum(lengths)
    if not lengths or kept < len(lengths) - 1:
        return ids.copy()
    # Which gaps between kept tokens have a span: each at most one.
    gaps = np.sort(rng.choice(kept + 1, len(lengths), replace=False))
    pieces, at = list[np.ndarray](), 0
    for i, (gap, length) in enumerate(zip(gaps.tolist(), lengths, strict=True)):
        before = gap - (int(gaps[i - 1]) if i else 0)
        pieces += [ids[at : at + before], np.array([mask], dtype=ids.dtype)]
        at += before + length
    return np.concatenate([*pieces, ids[at:]])


def deleted(ids: np.ndarray, rng: np.random.Generator, *, rate: float = 0.1) -> np.ndarray:
    """The text without some of its tokens; the model must find where they were. One token at least stays."""
    keep = rng.random(len(ids)) >= rate
    if len(ids) and not keep.any():
        keep[rng.integers(len(ids))] = True
    return ids[keep]


def permuted_sentences(ids: np.ndarray, rng: np.random.Generator, *, ends: np.ndarray) -> np.ndarray:
    """The sentences in random order; `ends` says of each token whether a sentence ends with it."""
    cuts = np.flatnonzero(ends[:-1]) + 1
    sentences = np.split(ids, cuts)
    return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])


def rotated(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The text begun at a token drawn at random, what stood before it at the end: document rotation."""
    return np.roll(ids, -int(rng.integers(len(ids)))) if len(ids) else ids.copy()
