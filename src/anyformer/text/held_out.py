"""Which examples are set aside to validate on."""

from __future__ import annotations

from anyformer.errors import TextError


def held_out_places(n: int, share: float, of: str) -> range:
    """The places, among `n` examples in their order, of those set aside: a share of them, evenly spread.

    Raises TextError, calling the examples what `of` says, where none would be set aside, or more than half.
    """
    every = round(1 / share) if 0 < share < 1 else 0
    if every < 2 or n < every:
        raise TextError(f"the validation split is empty: {share:g} of {n} {of}; give a share up to 0.5 and more {of}")
    return range(every - 1, n, every)
