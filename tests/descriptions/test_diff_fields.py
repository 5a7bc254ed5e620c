"""Every field of every part is told by a row of `diff`: one is changed at a time, in a preset that has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import anyformer as af
from anyformer.descriptions import diff
from anyformer.descriptions.diff.rows import ROWS
from anyformer.errors import SpecError
from anyformer.families import PRESETS
from anyformer.families.compose import changed
from anyformer.spec import Spec, parameters
from tests.laws.models import shrunk_once

SMALL = {name: shrunk_once(preset.spec) for name, preset in PRESETS.items()}


def leaves() -> Iterator[tuple[str, type[Spec], str, Any]]:
    """Yield (preset, part, field, another value) for every kind of part and field of the shrunk presets, once."""
    seen = set()
    for name, spec in SMALL.items():
        for part in spec.nested():
            for field, value in part.values().items():
                if (type(part), field) in seen or isinstance(value, Spec | tuple) or field in ("shared", "version"):
                    continue
                if field in ("norm_over", "norm_last") and getattr(part, "norm_query", None) is None:
                    continue  # of norms that are not there
                other = _other(type(part), field, value)
                if other is not None:
                    seen.add((type(part), field))
                    yield name, type(part), field, other


def _other(part: type[Spec], field: str, value: Any) -> Any:
    hint = part.types()[field]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2
    if isinstance(value, float):
        return value * 1.5 + 0.25
    if isinstance(value, str):
        choices = getattr(hint, "__args__", (f"{value} too",))
        return next(choice for choice in choices if choice != value)
    return 3 if "float" in str(hint) or "int" in str(hint) or "Length" in str(hint) else None


LEAVES = list(leaves())


def test_there_are_fields_to_change() -> None:
    assert len(LEAVES) > 90


@pytest.mark.parametrize(("name", "part", "field", "value"), LEAVES, ids=[f"{p.kind}.{f}" for _, p, f, _ in LEAVES])
def test_every_field_is_in_a_row(name: str, part: type[Spec], field: str, value: Any) -> None:
    """One field of every part of its kind changed: some row says so, and not the row of fields that no row tells."""
    spec = SMALL[name]
    try:
        other = changed(spec, part, **{field: value})
        parameters(other)
    except SpecError:
        pytest.skip("the other value cannot be built by itself")
    if other == spec:
        pytest.skip("the field is where nothing can change it alone")
    assert any(read(spec) != read(other) for read in ROWS.values()), f"no row tells {part.kind}.{field}"


def test_what_no_row_tells_is_told_by_its_path() -> None:
    rope = next(v for v in af.preset("phi4-mini").spec.nested() if v.kind == "LongRoPE")
    long = list(rope.long)  # type: ignore[attr-defined]
    long[20] *= 1.01
    b = changed(af.preset("phi4-mini").spec, type(rope), long=tuple(long))
    found = diff(af.preset("phi4-mini").spec, b)
    assert [row.part for row in found.rows if row.differs] == ["fields"]
    assert "long" in found.rows[-1].values[0]
    assert not found.equal
