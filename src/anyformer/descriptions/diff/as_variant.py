"""The changes that make one architecture of another: a diff, written as the patch that it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from anyformer.descriptions.diff.rows import ROWS as READINGS
from anyformer.errors import RunFailed, SpecError
from anyformer.spec import Architecture, ModelSpec, specification, split_variant
from anyformer.spec.difference import differences, n_values
from anyformer.variants.rows import ROWS
from anyformer.variants.values import text_of
from anyformer.variants.variant import Find, apply, vary_one

LONGEST = 100  # characters of a change; one that is longer is not for reading


def as_variant(a: Architecture, b: Architecture, *, names: tuple[str, str] = ("", "")) -> str:
    """`A+row=VALUE…`: changes that make of a exactly b, as few as were found, kinds rather than names.

    `names` are those that the two are loaded by, by default those of presets; without b's, no change takes a part of it. Raises
    RunFailed that names the rows which no change makes equal, where no such variant is found.
    """
    start, goal = specification(a), specification(b)
    base, other = (name or getattr(each, "name", "") for name, each in zip(names, (a, b), strict=True))
    find: Find = {other: goal}.__getitem__
    spec, changes, before = start, dict[str, str](), -1
    while spec != goal and len(changes) > before:
        before = len(changes)
        for key, candidates in [*((key, _values(key, goal, other)) for key in ROWS), *_fields(spec, goal).items()]:
            read = READINGS.get(ROWS[key].part) if key in ROWS else None
            if key not in changes and (read is None or read(spec) != read(goal)):
                spec, changes = _nearest(spec, goal, changes, key, candidates, find)
    for key in list(changes):  # that others have made needless
        fewer = {each: value for each, value in changes.items() if each != key}
        with suppress(SpecError):
            changes = fewer if apply(start, fewer.items(), find) == goal else changes
    if spec != goal or apply(start, changes.items(), find) != goal:
        rows = [part for part, read in READINGS.items() if read(goal) not in (read(start), read(spec))]
        rows = rows or sorted({path.rpartition(".")[2] for path, *_ in differences(spec, goal)})
        said = "stacks" if "stacks" in rows else ", ".join(rows)  # an encoder has all the others of its own
        raise RunFailed(f"no variant of {base or 'a'} is {other or 'b'}: no change makes equal {said}")
    return "+".join([base, *(f"{key}={value}" for key, value in changes.items())])


def _nearest(
    spec: ModelSpec, goal: ModelSpec, changes: dict[str, str], key: str, values: Iterable[str], find: Find
) -> tuple[ModelSpec, dict[str, str]]:
    """The model with the value that brings it nearest to the goal, if any does, and the changes with it."""
    best, found = _distance(spec, goal), (spec, changes)
    for value in values:
        with suppress(SpecError):
            made = vary_one(spec, key, value, find)
            if (distance := _distance(made, goal)) < best:
                best, found = distance, (made, {**changes, key: value})
    return found


def _distance(a: ModelSpec, b: ModelSpec) -> int:
    """How many fields differ, layers that are alike once; a part that only one of them has by all that is in it."""
    pairs: list[tuple[Any, Any]] = [(a.but(encoder=None), b.but(stack=a.stack, encoder=None))]
    n_layers = 0
    for name in {**a.stacks, **b.stacks}:
        ours, theirs = a.stacks.get(name), b.stacks.get(name)
        if ours is None or theirs is None:
            pairs.append((ours, theirs))
            continue
        layers = zip_longest(ours.blocks, theirs.blocks[: len(ours.blocks)], fillvalue=theirs.blocks[-1])
        pairs += {(id(x), id(y)): (x, y) for x, y in layers}.values()
        pairs.append((ours, theirs.but(blocks=ours.blocks)))
        n_layers += abs(len(ours.blocks) - len(theirs.blocks))
    return n_layers + sum(max(n_values(x), n_values(y)) for pair in pairs for _, x, y in differences(*pair))


def _values(key: str, goal: ModelSpec, other: str) -> Iterator[str]:
    """What might give a model the goal's part: words, the part itself, the goal by its name."""
    yield from ROWS[key].words
    with suppress(SpecError, AttributeError, KeyError):  # not of one kind, or of a kind that has no such word
        if (text := ROWS[key].text) and len(value := text(goal)) <= LONGEST:
            yield value
    if other and not split_variant(other)[1]:
        yield other


def _fields(spec: ModelSpec, goal: ModelSpec) -> Mapping[str, list[str]]:
    """Fields of the goal's parts, `Kind.field` and the value, that differ where the parts are of one kind."""
    found: dict[str, list[str]] = {}
    for path, *_ in differences(spec, goal):
        owner, _, field = re.sub(r"\[\d+\]$", "", path).rpartition(".")
        part: Any = goal
        for name in re.findall(r"\w+", owner):
            part = part[int(name)] if name.isdigit() else getattr(part, name)
        if len(value := text_of(getattr(part, field))) <= LONGEST:
            found.setdefault(f"{part.kind}.{field}", [value])
    return found
