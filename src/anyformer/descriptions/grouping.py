"""Layers that are alike, taken together: which there are, where they stand, and the pattern that they make."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple, TypeVar

from anyformer.layers import ShortenedSpec
from anyformer.spec import BlockSpec, StackSpec, period

T = TypeVar("T", bound=Hashable)
LISTED = 4  # so many stretches of layers are listed where no pattern repeats; more are counted


class Layers(NamedTuple):
    """Layers of one stack that are equal, and their numbers, counted from 0."""

    block: BlockSpec
    at: tuple[int, ...]


class Pattern(NamedTuple):
    """A row of values as (value, times in a row), over and over until there are `n`; `whole`: written out once."""

    runs: tuple[tuple[Hashable, int], ...]
    n: int

    @property
    def period(self) -> int:
        """How many values there are before they repeat."""
        return sum(times for _, times in self.runs)

    @property
    def whole(self) -> bool:
        """Whether the runs are all there is."""
        return self.period == self.n


def distinct_layers(stack: StackSpec | ShortenedSpec) -> tuple[Layers, ...]:
    """The different layers of a stack in the order in which they first occur."""
    by_identity: dict[int, list[int]] = {}  # tiled layers are one object, so few of them need to be compared
    for i, block in enumerate(stack.blocks):
        by_identity.setdefault(id(block), []).append(i)
    by_value: dict[BlockSpec, list[int]] = {}
    for at in by_identity.values():
        by_value.setdefault(stack.blocks[at[0]], []).extend(at)
    return tuple(Layers(block, tuple(sorted(at))) for block, at in by_value.items())


def by_layer(stack: StackSpec | ShortenedSpec, say: Callable[[BlockSpec], T]) -> tuple[T, ...]:
    """What is said of each layer in turn; equal layers are asked once."""
    said: dict[int, T] = {}
    for layers in distinct_layers(stack):
        said |= dict.fromkeys(layers.at, say(layers.block))
    return tuple(said[i] for i in range(len(stack.blocks)))


def pattern(values: Sequence[T]) -> Pattern:
    """The shortest pattern that repeats twice at least, or else all values."""
    n = len(values)
    repeats = period(values)
    once = values[:repeats] if 2 * repeats <= n else values
    return Pattern(tuple((value, len(tuple(run))) for value, run in groupby(once)), n)


def in_words(values: Sequence[str | None]) -> str:
    """What layer after layer has, in a few words: "5 × window of 1,024 : 1 × full"; None is left out.

    A pattern that repeats is written once, however many times it fits; otherwise layers are named, counted from 0.
    """
    if len(set(values)) == 1:
        return values[0] or ""
    found = pattern(values)
    if not found.whole:
        return " : ".join(f"{times} × {value or 'none'}" for value, times in found.runs)
    said = [value for value in dict.fromkeys(values) if value]
    return "; ".join(f"{value} in {places(i for i, v in enumerate(values) if v == value)}" for value in said)


def places(numbers: Iterable[int]) -> str:
    """The numbers of layers: "layer 0", "layers 0–2, 5"; of many stretches, how many layers they are."""
    numbers = sorted(numbers)
    said = stretches(numbers)
    if len(said) > LISTED:
        return f"{len(numbers)} layers ({', '.join(said[:LISTED])} …)"
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(said)}"


def stretches(numbers: Sequence[int]) -> list[str]:
    """Sorted numbers as runs: "0–31", "40"."""
    starts = (i for i, n in enumerate(numbers) if not i or n != numbers[i - 1] + 1)
    runs = (numbers[i:j] for i, j in pairwise((*starts, len(numbers))))
    return [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
