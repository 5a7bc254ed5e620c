"""Where two specifications part: the path of each field whose values differ, with both values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from anyformer.errors import SpecError
from anyformer.spec.part import PartSpec, Spec

# path such as "stack.blocks[0].sublayers[1].norm_in.eps", the first's value, the second's
Difference = tuple[str, Any, Any]


def differences(a: Any, b: Any, path: str = "") -> Iterator[Difference]:
    """Every field in which two values differ, depth first; other kinds and other lengths as a whole."""
    if a == b:
        return
    if isinstance(a, Spec) and type(a) is type(b):
        ours, theirs = a.values(), b.values()
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}" if path else name)
    elif isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for i, pair in enumerate(zip(a, b, strict=True)):
            yield from differences(*pair, f"{path}[{i}]")
    else:
        yield path, a, b


def n_values(value: Any) -> int:
    """How many values there are in one, itself among them: how much differs where it does as a whole."""
    inside = value.values().values() if isinstance(value, Spec) else value if isinstance(value, tuple) else ()
    return 1 + sum(map(n_values, inside))


def first_difference(a: Any, b: Any) -> Difference | None:
    """The first field in which two values differ; None for equal ones."""
    return next(differences(a, b), None)


def unlike(a: PartSpec, b: PartSpec, at_a: str = "one", at_b: str = "another") -> SpecError:
    """The error of two parts of one shared name that differ, by a field, or by what stands around them; told are their places."""
    path, x, y = first_difference(a, b) or ("", None, None)
    what, said = f"{path} is {short(x)} in {at_a} and {short(y)} in {at_b}", "make them equal"
    if a == b:
        what, said = f"their tensors have other shapes in {at_a} and in {at_b}", "give each a name of its own"
    elif not path:
        what = f"{at_a} is {a.kind} and {at_b} {b.kind}"
    return SpecError(f"two different {b.kind} parts share the name {b.shared!r}: {what}; {said}")


def short(value: Any) -> str:
    """A value in a message: a part by its kind, a tuple of parts by how many there are of each kind, a number in full."""
    if isinstance(value, Spec):
        return value.kind
    if isinstance(value, tuple) and value and all(isinstance(item, Spec) for item in value):
        kinds = Counter(item.kind for item in value)
        return ", ".join(f"{n} × {kind}" for kind, n in kinds.items())
    return repr(value)
