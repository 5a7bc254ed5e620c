"""Which presets stand for all of them: `make test` tries a sample that uses every part, `make test-all` each one.

Of the sample each test takes its own sixteenth: a part is tried by so many of the laws, and a law on so many of the parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from zlib import crc32

import pytest

from anyformer.families import PRESETS
from anyformer.spec import ModelSpec

SHARE = 16  # of the presets that add no part of their own, one in so many is drawn, by its name
# Of the tests that are in turn, one in so many is tried, by its name; and so many fewer combinations are drawn.
TURNS = 16


def few(specs: Mapping[str, ModelSpec]) -> frozenset[str]:
    """Return names that together use every kind of part; each adds as many kinds as any other could."""
    kinds = {name: {type(value) for value in spec.nested()} for name, spec in specs.items()}
    left, chosen = set().union(*kinds.values()), set[str]()
    while left:
        best = max(kinds, key=lambda name: len(kinds[name] & left))
        chosen.add(best)
        left -= kinds[best]
    return frozenset(chosen)


FEW = few({name: found.spec for name, found in PRESETS.items()})


def is_one_of_few(name: str) -> bool:
    """Return whether a preset, or one of several equal ones ("a = b"), is among those that together use every part."""
    return not FEW.isdisjoint(name.split(" = "))


def is_drawn(name: str) -> bool:
    """Return whether the quick tests try what stands under a name; what is no preset they always try."""
    names = name.split(" = ")
    return PRESETS.keys().isdisjoint(names) or is_one_of_few(name) or any(crc32(n.encode()) % SHARE == 0 for n in names)


def mark(quick: bool) -> pytest.MarkDecorator:
    """Return that of what is in the sample, or is not."""
    return pytest.mark.in_turn if quick else pytest.mark.slow


def in_turn(*values: object) -> Any:
    """Return a test's parameters that `make test` tries in their turn."""
    return pytest.param(*values, marks=pytest.mark.in_turn)


def is_its_turn(test: str, turns: int = TURNS) -> bool:
    """Return whether `make test` tries a test that is marked `in_turn`, one in so many, by its name with its parameters."""
    return crc32(test.encode()) % turns == 0


def combinations(n: int) -> int:
    """Return how many combinations of parts a law draws: n in `make test-all`, which draws new ones."""
    return n if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else -(-n // TURNS)


def sampled(given: Mapping[str, object] | Iterable[str], quick: Callable[[str], bool] = is_drawn) -> Any:
    """Return parameters of a test, by name: a sample in the quick tests, the others among the slow ones."""
    values = given if isinstance(given, Mapping) else {name: name for name in given}
    return [pytest.param(each, id=n, marks=mark(quick(n))) for n, each in values.items()]


def beside(specs: Mapping[str, ModelSpec], cases: Mapping[str, tuple[object, ...]], sampled: Iterable[str]) -> Any:
    """Return parameters of a test, specs by cases: quick are those of `sampled` for a sample of specs, others for the few."""
    quick = {of: is_drawn if of in set(sampled) else is_one_of_few for of in cases}
    return [
        pytest.param(spec, *case, id=f"{name}-{of}", marks=mark(quick[of](name)))
        for name, spec in specs.items()
        for of, case in cases.items()
    ]
