"""Sizes and rates as types, each with its range: a field is bounded by being declared, and no value holds what is beyond."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

TINY, HUGE = 1e-30, 1e30  # of numbers: float32 holds them, and 1 divided by them
MOST = 256  # values of a list: sublayers, masks, factors of a rotation
MOST_LAYERS = 10_000
LONGEST = 200  # characters of a name


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`, without these themselves where it is `above` and `below` them."""

    least: float
    most: float
    above: bool = False
    below: bool = False

    def refusal(self, value: int | float) -> str | None:
        """What a number must be that is not in the range; None for one that is."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"must be a finite number{f', {self}' if self.most <= 1 else ''}"
        least = value > self.least if self.above else value >= self.least
        most = value < self.most if self.below else value <= self.most
        if not (least and most):
            return f"must be {self if self.most <= 1 else self._least if most else self._most}"
        if isinstance(value, float) and self.above and value < TINY:
            return f"must be at least {TINY:g}"
        return None

    @property
    def _least(self) -> str:
        return f"{'above' if self.above else 'at least'} {self.least:,}"

    @property
    def _most(self) -> str:
        return f"{'below' if self.below else 'at most'} {self.most:,}"

    def __str__(self) -> str:
        return f"{self._least} and {self._most}"


Width = NewType("Width", int)  # of vectors: d_model, d_ff, head_dim
Count = NewType("Count", int)  # of things: heads, experts, segments
Length = NewType("Length", int)  # of sequences, in tokens: contexts, learned positions
Window = NewType("Window", int)  # of distances, in tokens: sliding windows, the reach of buckets
Vocab = NewType("Vocab", int)  # rows of a table of tokens
Passage = NewType("Passage", str)  # of a text, ends of lines too

EXACT = 2**53  # the whole numbers up to it are floats too
RANGES: dict[Any, Range] = {
    Width: Range(1, 2**28),
    Count: Range(1, 2**16),
    Length: Range(1, 2**40),
    Window: Range(1, 2**40),
    Vocab: Range(1, 2**32),
    int: Range(0, EXACT),
    float: Range(-HUGE, HUGE),
}
Whole = Annotated[int, Range(1, EXACT)]
Few = Annotated[int, Range(1, 2**16)]  # of the things that a Count counts
Positive = Annotated[float, Range(0, HUGE, above=True)]
NotNegative = Annotated[float, Range(0, HUGE)]
AtLeastOne = Annotated[float, Range(1, HUGE)]
Exponent = Annotated[float, Range(-4, 4)]
Share = Annotated[float, Range(0, 1)]
SomeShare = Annotated[float, Range(0, 1, above=True)]
TrueShare = Annotated[float, Range(0, 1, above=True, below=True)]
Rate = Annotated[float, Range(0, 1, below=True)]  # of dropout, of decay: all would be too much

Layers = Range(1, MOST_LAYERS)  # how many a tuple has

Refuse = Callable[
    [Any], str | None
]  # what a value must be that is not of a type and in its range; None for one that is


@cache
def refuse(hint: Any) -> Refuse:
    """What refuses the values that a declared type does not take, `Annotated[float, Range(0, 1)]` those beyond 1."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = next((each for each in options[1:] if isinstance(each, Range)), None)
        if found is None or get_origin(options[0]) is tuple:
            return _tuple(refuse(get_args(options[0])[0]), found.most) if found else refuse(options[0])
        return _number(_plain(options[0]), found)
    if origin in (Union, UnionType):
        return _one_of([refuse(option) for option in options if option is not NoneType], NoneType in options)
    if origin is tuple:
        return _tuple(refuse(options[0]), MOST)
    if origin is Literal:
        return lambda value: None if value in options else f"must be one of {', '.join(map(repr, options))}"
    if (plain := _plain(hint)) in (int, float):
        return _number(plain, RANGES[hint])
    if plain is str:
        return _passage if hint is Passage else _name
    return lambda value: None if isinstance(value, plain) else f"must be {_a(plain)}"


def filled(refusal: Refuse) -> Refuse:
    """What refuses an empty list too."""
    return lambda value: "is empty; it has at least one" if value == () else refusal(value)


def _plain(hint: Any) -> Any:
    return getattr(hint, "__supertype__", hint)


def _a(kind: type) -> str:
    return {bool: "true or false"}.get(kind, f"a value of the kind {getattr(kind, 'kind', kind.__name__)}")


def _number(plain: type, found: Range) -> Refuse:
    def number(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, plain if plain is int else (int, float)):
            return f"must be a {'whole ' if plain is int else ''}number"
        return found.refusal(value)

    return number


def _name(value: Any) -> str | None:
    short = isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable()
    return None if short else f"must be a text of 1 to {LONGEST} characters that print"


def _passage(value: Any) -> str | None:
    return _name(value.replace("\n", " ") if isinstance(value, str) else value)


def _one_of(refusals: list[Refuse], or_none: bool) -> Refuse:
    def one_of(value: Any) -> str | None:
        if or_none and value is None:
            return None
        said = [each(value) for each in refusals]
        return None if None in said else f"{said[0]}{', or null' if or_none else ''}"

    return one_of


def _tuple(refusal: Refuse, most: float) -> Refuse:
    def items(value: Any) -> str | None:
        if not isinstance(value, tuple) or len(value) > most:
            return f"must be a {'tuple' if isinstance(value, list) else 'list'} of at most {most:,}"
        return next((said for item in {id(item): item for item in value}.values() if (said := refusal(item))), None)

    return items
