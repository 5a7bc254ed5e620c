"""A mixture of denoisers: Tay et al. 2022 (UL2), arXiv:2205.05131, section 3.1 and table 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anyformer.text.noise.spans import Example, span_corrupted


@dataclass(frozen=True)
class Denoiser:
    """Spans of a mean length at a rate; without a mean length, one span at the end: a prefix language model."""

    mode: Literal["R", "S", "X"]  # regular, sequential, extreme
    rate: float
    mean_length: float | None


UL2: Sequence[Denoiser] = (
    Denoiser("R", 0.15, 3.0),
    Denoiser("R", 0.15, 8.0),
    Denoiser("S", 0.25, None),
    Denoiser("X", 0.5, 3.0),
    Denoiser("X", 0.5, 8.0),
    Denoiser("X", 0.15, 64.0),
    Denoiser("X", 0.5, 64.0),
)
"""Table 1; each is drawn as often as any other (section 3.1.2)."""


def denoised(
    ids: np.ndarray,
    rng: np.random.Generator,
    denoiser: Denoiser,
    *,
    sentinels: Sequence[int],
    modes: Mapping[str, int] | None = None,
) -> Example:
    """What the denoiser makes of the text; `modes` are tokens that say at the start of a source which it was."""
    if denoiser.mean_length is None:
        # The mean of the tail's length is rate · n: drawn evenly from 1 to twice that.
        tail = int(rng.integers(1, max(2, round(2 * denoiser.rate * len(ids)))))
        found = Example(
            np.append(ids[: len(ids) - tail], sentinels[0]), np.append(sentinels[0], ids[len(ids) - tail :])
        )
    else:
        rate, mean = denoiser.rate, denoiser.mean_length
        found = span_corrupted(ids, rng, sentinels=sentinels, rate=rate, mean_length=mean)
    if modes is None:
        return found
    return Example(np.concatenate([[modes[denoiser.mode]], found.source]).astype(ids.dtype), found.target)
