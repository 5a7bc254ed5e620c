"""Where two values of the specification language first differ."""

from __future__ import annotations

from typing import Any, NamedTuple

from anyformer.spec import Spec


class Difference(NamedTuple):
    """One field, by its dotted path, and its two values in words."""

    path: str
    first: str
    second: str


def difference(first: Any, second: Any, path: str = "") -> Difference | None:
    """Return the first field in which two values differ, as deep inside as there is one; None where they are equal."""
    if first == second:
        return None
    if isinstance(first, Spec) and type(first) is type(second):
        mine, theirs = first.values(), second.values()
        pairs = [(f"{path}.{name}" if path else name, mine[name], theirs[name]) for name in mine]
    elif isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        pairs = [(f"{path}[{i}]", mine, theirs) for i, (mine, theirs) in enumerate(zip(first, second, strict=True))]
    else:
        return Difference(path or "it", _words(first), _words(second))
    found = (difference(mine, theirs, place) for place, mine, theirs in pairs)
    return next(found_one for found_one in found if found_one is not None)


def _words(value: Any) -> str:
    """A part is its kind, many are their number: the path says the rest."""
    if isinstance(value, Spec):
        return value.kind
    if isinstance(value, tuple) and value and isinstance(value[0], Spec):
        return f"{len(value)} {value[0].kind}s"
    return repr(value)
