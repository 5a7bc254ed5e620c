"""One of a mixture of denoisers: Tay et al. 2022 (UL2), arXiv:2205.05131, section 3.1 and table 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anyformer.text.noise.spans import Example, span_corrupted


def denoised(
    ids: np.ndarray,
    rng: np.random.Generator,
    *,
    rate: float,
    mean_length: float | None,
    sentinels: Sequence[int],
    mode: int | None = None,
) -> Example:
    """A text with spans of a mean length hidden at a rate; without a mean length, one span at the end: a prefix language model.

    `mode` is a token that says at the start of a source which denoiser it was.
    """
    if mean_length is None:
        # The mean of the tail's length is rate · n: drawn evenly from 1 to twice that.
        tail = int(rng.integers(1, max(2, round(2 * rate * len(ids)))))
        found = Example(
            np.append(ids[: len(ids) - tail], sentinels[0]), np.append(sentinels[0], ids[len(ids) - tail :])
        )
    else:
        found = span_corrupted(ids, rng, sentinels=sentinels, rate=rate, mean_length=mean_length)
    if mode is None:
        return found
    return Example(np.concatenate([[mode], found.source]).astype(ids.dtype), found.target)
