"""The way from one architecture to another through the family tree: what each generation changed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from anyformer.descriptions.diff.diff import DiffRow, rows_of
from anyformer.descriptions.diff.rows import SIZES
from anyformer.families import PRESETS, Preset
from anyformer.families.tree import lineage_of, path


@dataclass(frozen=True)
class Step:
    """From one generation to the next, or, `back`, to the one that it descends from."""

    names: tuple[str, str]  # presets
    back: bool
    year: int  # of the younger one
    changed: str  # in a phrase: what the younger one did
    source: str
    rows: tuple[DiffRow, ...]  # parts that differ, sizes last

    @property
    def parts(self) -> tuple[DiffRow, ...]:
        """The parts that differ, sizes left out."""
        return tuple(row for row in self.rows if row.part not in SIZES)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def lineage(a: Preset, b: Preset) -> tuple[Step, ...]:
    """The steps from a to b: up to the common ancestor, and down; one step within a lineage."""
    lines = path(lineage_of(a.name), lineage_of(b.name))
    if len(lines) == 1:
        rows = _rows(a, b)
        return (Step((a.name, b.name), False, lines[0].year, "another size", lines[0].source, rows),) if rows else ()
    presets = [a, *(PRESETS[line.known] for line in lines[1:-1]), b]
    steps = []
    for (older, newer), (before, after) in zip(pairwise(presets), pairwise(lines), strict=True):
        back = before.parent == after.name
        younger = before if back else after
        rows = _rows(older, newer)
        steps.append(Step((older.name, newer.name), back, younger.year, younger.changed, younger.source, rows))
    return tuple(steps)


def _rows(a: Preset, b: Preset) -> tuple[DiffRow, ...]:
    found = [row for row in rows_of(a, b) if row.differs]
    return tuple(sorted(found, key=lambda row: row.part in SIZES))
