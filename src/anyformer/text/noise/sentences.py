"""Two runs of text in a row: whether the second follows the first, or which of them came first.

Devlin et al. 2019 (BERT), arXiv:1810.04805, section 3.1 and appendix A.2; Lan et al. 2019 (ALBERT), arXiv:1909.11942,
section 3.1. Runs end where sentences do, as far as `ends`, [id] bool, can tell; where it cannot, between any two tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Pair(NamedTuple):
    """Two runs of tokens of one text, as (start, length) in it, the first then the second."""

    first: tuple[int, int]
    second: tuple[int, int]


def passages(ids: np.ndarray, ends: np.ndarray, room: int) -> Iterator[tuple[int, int]]:
    """(start, length) of the passages that a document is cut into, each of 2 to `room` tokens, one after the other.

    A passage ends with the last sentence that has an end in it, unless that left it less than half full. A single token
    left over belongs to none.
    """
    at, ending = 0, np.flatnonzero(ends[ids]) + 1  # where sentences end, exclusive
    while len(ids) - at >= 2:
        stop = min(at + room, len(ids))
        if stop < len(ids):
            last = int(np.searchsorted(ending, stop, side="right")) - 1
            if last >= 0 and 2 * (ending[last] - at) >= room and ending[last] - at >= 2:
                stop = int(ending[last])
        yield at, stop - at
        at = stop


def shortened(ids: np.ndarray, rng: np.random.Generator, ends: np.ndarray) -> int:
    """Return a length for a passage: drawn evenly from 2 on, then up to the end of the sentence that it would cut."""
    n = int(rng.integers(2, len(ids) + 1))
    ending = np.flatnonzero(ends[ids[n - 1 :]])
    return n + int(ending[0]) if len(ending) else n


def neighbours(ids: np.ndarray, rng: np.random.Generator, ends: np.ndarray) -> Pair:
    """Return a passage of two tokens or more cut in two, between sentences drawn at random where there are several."""
    ending = np.flatnonzero(ends[ids[:-1]]) + 1
    cut = int(rng.choice(ending)) if len(ending) else int(rng.integers(1, len(ids)))
    return Pair((0, cut), (cut, len(ids) - cut))


def elsewhere(ids: np.ndarray, rng: np.random.Generator, ends: np.ndarray, most: int) -> tuple[int, int]:
    """(start, length) of a run of at most `most` tokens of a document, from the start of one of its sentences."""
    starts = np.append(0, np.flatnonzero(ends[ids[:-1]]) + 1)
    start = int(rng.choice(starts))
    run = ids[start : start + most]
    if start + most >= len(ids):
        return start, len(run)
    ending = np.flatnonzero(ends[run])
    return start, int(ending[-1]) + 1 if len(ending) else len(run)
