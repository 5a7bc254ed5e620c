"""How the tensors of two state dicts differ: added, removed, reshaped, the layers of a stack under one name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

Shape = tuple[int, ...]
LAYER = re.compile(r"\bblocks\.(\d+)\.")


@dataclass(frozen=True)
class KeyChange:
    """Tensors of one name but for the number of the layer, that differ in one way."""

    key: str  # stack.blocks.{i}.…
    layers: str  # "0–31"; empty for a tensor outside the layers
    count: int
    before: Shape | None  # None: added
    after: Shape | None  # None: removed

    @property
    def change(self) -> str:
        """Added, removed or reshaped."""
        return "added" if self.before is None else "removed" if self.after is None else "reshaped"


def key_changes(a: Mapping[str, Shape], b: Mapping[str, Shape]) -> tuple[KeyChange, ...]:
    """What differs, in the order of the first's keys and then of the second's."""
    groups: dict[tuple[str, Shape | None, Shape | None], list[int]] = {}
    for key in dict.fromkeys((*a, *b)):
        before, after = a.get(key), b.get(key)
        if before != after:
            match = LAYER.search(key)
            name = LAYER.sub("blocks.{i}.", key, count=1)
            groups.setdefault((name, before, after), []).append(int(match[1]) if match else -1)
    return tuple(
        KeyChange(name, "" if layers[0] < 0 else ranges(layers), len(layers), before, after)
        for (name, before, after), layers in groups.items()
    )


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as runs: 0–31, 40; every second one as 0, 2, …, 46."""
    found = sorted(numbers)
    steps = {after - before for before, after in pairwise(found)}
    if len(found) > 2 and len(steps) == 1 and steps != {1}:
        return f"{found[0]}, {found[1]}, …, {found[-1]}"
    runs: list[list[int]] = []
    for n in found:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    said = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(said if len(said) <= 5 else [*said[:4], "…", said[-1]])
