"""What a mesh is written as: axes and numbers, "dp=2,tp=4"; of a plan's devices, and of a run's processes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from anyformer.errors import UsageError, among


def axes_of(text: str, known: Collection[str], zero: Sequence[int], example: str) -> dict[str, int]:
    """The number of each axis that a text names, in its order.

    `known`: the axes there are; `zero`: the stages of ZeRO there are; `example`: how a mesh is written. Raises UsageError
    for no axis at all, what is no axis and number, an axis that is unknown or named twice, and a number that it cannot have.
    """
    given: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\w+)\s*=\s*(-?\d{1,9})", item)
        if match is None:
            raise UsageError(f"--mesh {text!r}: {item!r} is no axis and number; write it as {example}")
        name, number = match[1], int(match[2])
        if name not in known:
            raise UsageError(f"--mesh {text!r}: {name!r} is no axis{among(name, known)}")
        if name == "zero" and number not in zero:
            raise UsageError(f"--mesh {text!r}: zero = {number} must be one of {', '.join(map(str, zero))}")
        if name != "zero" and number < 1:
            raise UsageError(f"--mesh {text!r}: {name} = {number} must be at least 1")
        if name in given:
            raise UsageError(f"--mesh {text!r}: {name} = {given[name]} is said before {item!r}; leave one out")
        given[name] = number
    if not given:
        raise UsageError(f"--mesh {text!r} names no axis; write it as {example}")
    return given
