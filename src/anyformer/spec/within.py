"""Places inside a value: the fields and numbers that lead to a value inside it, found by as much of them as tells them apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from anyformer.errors import SpecError, did_you_mean
from anyformer.spec.part import Spec

Path = tuple[str | int, ...]


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The places of all fields and items inside, depth first."""
    if isinstance(value, Spec):
        inside: Any = value.values().items()
    else:
        inside = enumerate(value) if isinstance(value, tuple) else ()
    for step, item in inside:
        yield (*path, step)
        yield from paths(item, (*path, step))


def text_of(path: Path) -> str:
    """sublayers.0.branches.0.mixer.mask"""
    return ".".join(map(str, path))


def the_place(value: Any, name: str, where: str) -> Path:
    """The one place that ends in the last word of `a.b.c` and has the others before it, in their order. Raises SpecError."""
    words = str(name).split(".")
    places = [path for path in paths(value) if str(path[-1]) == words[-1] and _in_order(words, path)]
    fits = [path for path in places if len(path) == len(words)] or places  # a whole path is itself
    if not fits:
        near = did_you_mean(words[-1], {str(path[-1]) for path in paths(value)})
        raise SpecError(f"{where}: there is no {name!r} in what it is like{near}")
    if len(fits) > 1:
        told = ", ".join(map(text_of, fits[:6])) + (", …" if len(fits) > 6 else "")
        raise SpecError(f"{where}: {name!r} stands at {len(fits)} places; say which: {told}")
    return fits[0]


def _in_order(words: list[str], path: Path) -> bool:
    steps = iter(map(str, path))
    return all(word in steps for word in words)


def type_at(value: Any, path: Path) -> Any:
    """The type that a place is declared to have."""
    declared: Any = type(value)
    for step in path:
        declared = get_args(declared)[0] if isinstance(step, int) else type(value).types()[step]
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return declared


def replaced(value: Any, path: Path, new: Any) -> Any:
    """The value with another at a place inside it. Raises SpecError where that cannot be."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return (*value[:step], replaced(value[step], rest, new), *value[step + 1 :])
    return value.but(**{step: replaced(getattr(value, step), rest, new)})


def stands(value: Spec, name: str) -> str:
    """``"; d_model stands in stack"`` where a field of this name is inside a value, or an empty string."""
    inside = (text_of(path[:-1]) for path in paths(value) if path[-1] == name)
    first = next(inside, None)
    return f"; {name} stands in {first}" if first else ""
