"""Spans of a text replaced by sentinels, and the rest of a text given its beginning.

Raffel et al. 2020 (T5), arXiv:1910.10683, section 3.1.4 and figure 2 (span corruption), section 3.2.1 (prefix language model).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError


class Example(NamedTuple):
    """What is read, and what is to be written; int64 [token] each."""

    source: np.ndarray
    target: np.ndarray


def span_corrupted(
    ids: np.ndarray,
    rng: np.random.Generator,
    *,
    sentinels: Sequence[int],
    rate: float = 0.15,
    mean_length: float = 3.0,
) -> Example:
    """The text with each noise span as one sentinel, and the spans, each after its sentinel, then one sentinel more.

    Raises TextError where there are fewer sentinels than spans and the one that ends the target.
    """
    noise = noise_spans(len(ids), rng, rate=rate, mean_length=mean_length)
    source, target = (_with_sentinels(ids, part, sentinels) for part in (noise, ~noise))
    spans = int((np.diff(noise.astype(int), prepend=0) == 1).sum())
    if spans >= len(sentinels):
        raise _too_few(len(ids), spans + 1, sentinels)
    return Example(source, np.append(target, sentinels[spans]) if noise[-1] else target)


def noise_spans(n: int, rng: np.random.Generator, *, rate: float, mean_length: float) -> np.ndarray:
    """Which of n tokens are noise: bool [n], round(rate · n) of them in round(that / mean_length) spans.

    A text of two tokens or more begins with one that is kept; where the spans are is drawn from all ways to place them so
    that no two touch.
    """
    if n < 2:
        return np.ones(n, dtype=bool)
    noisy = min(n - 1, max(1, round(rate * n)))
    spans = min(noisy, n - noisy, max(1, round(noisy / mean_length)))
    between = _divided(n - noisy + 1, spans + 1, rng)
    between[-1] -= 1  # nothing need stand after the last span
    lengths = np.zeros(2 * spans + 1, dtype=np.int64)
    lengths[::2], lengths[1::2] = between, _divided(noisy, spans, rng)
    return np.repeat(np.arange(2 * spans + 1) % 2 == 1, lengths)


def prefix(ids: np.ndarray, rng: np.random.Generator) -> Example:
    """Return a text cut in two at a place where both parts have a token."""
    at = int(rng.integers(1, len(ids))) if len(ids) > 1 else 0
    return Example(ids[:at], ids[at:])


def _divided(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Positive lengths that add up to the total, all such divisions alike likely."""
    cuts = np.sort(rng.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def _with_sentinels(ids: np.ndarray, hidden: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
    """The ids with every run of what is hidden as one sentinel, in order."""
    starts = hidden & ~np.concatenate([[False], hidden[:-1]])
    n = int(starts.sum())
    if n > len(sentinels):
        raise _too_few(len(ids), n, sentinels)
    result = ids.copy()
    result[starts] = np.asarray(sentinels[:n], dtype=ids.dtype)
    return result[~hidden | starts]


def _too_few(n_tokens: int, needed: int, sentinels: Sequence[int]) -> TextError:
    return TextError(
        f"a text of {n_tokens} tokens needs {needed} sentinels and the vocabulary has {len(sentinels)}; "
        "give shorter rows, longer spans, or a tokenizer with more sentinels"
    )
