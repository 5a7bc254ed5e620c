"""Which layer of a given model each of a deeper or shallower one begins as: `0-23,8-31`.

Layers twice: Kim et al. 2023, arXiv:2312.15166 (SOLAR, depth up-scaling). Copies that write nothing at first, so that the
function stays: Wu et al. 2024, arXiv:2401.02415 (LLaMA Pro). Some left out: Sanh et al. 2019, arXiv:1910.01108 (DistilBERT).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from anyformer.errors import UsageError
from anyformer.spec.ranges import MOST_LAYERS

RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?(?:/(\d{1,6}))?(~?)")


class Layer(NamedTuple):
    """A layer as one of a given model's."""

    number: int
    silent: bool = False  # what it writes to the stream is 0 at first


def as_they_stand(n: int, given: int) -> list[Layer | None]:
    """Each as that of its number; None beyond the last."""
    return [Layer(i) if i < given else None for i in range(n)]


def read_layers(text: str, given: int) -> list[Layer]:
    """The layers that a text names: numbers and ranges of a model of `given` layers; `/2` is every second, `~` silent.

    Raises UsageError for a text of another kind, and for a layer that there is not.
    """
    found: list[Layer] = []
    for word in text.split(","):
        read = RANGE.fullmatch(word.strip())
        first, last, step, silent = read.groups() if read else ("1", "0", None, "")
        numbers = range(int(first), int(last or first) + 1, int(step or 1) or MOST_LAYERS)
        if not numbers or step == "0":
            said = "write numbers and ranges, such as 0-23,8-31, 0-11/2 for every second, 3~ for one that writes nothing yet"
            raise UsageError(f"--layers {text}: {word!r} names no layers; {said}")
        if numbers[-1] >= given:
            raise UsageError(f"--layers {text}: there is no layer {numbers[-1]}; those given are 0 to {given - 1}")
        found += [Layer(number, bool(silent)) for number in numbers]
        if len(found) > MOST_LAYERS:
            raise UsageError(f"--layers {text}: these are more than {MOST_LAYERS:,} layers; name fewer")
    return found
