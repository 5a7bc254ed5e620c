"""What was measured here of the field's claims: the verdicts of the studies of this repository, by what they are about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from anyformer.study.paired import Ruling
from anyformer.variants.rows import ROWS

WHOLE = "the whole"  # what a claim is about that no row of variants is


@dataclass(frozen=True)
class Evidence:
    """One claim, and what a study said of it."""

    about: str | None  # a row of variants; None: the whole architecture
    claim: str
    ruling: Ruling
    said: str  # the numbers
    scale: str  # up to which size and budget
    study: str  # its file

    @property
    def part(self) -> str:
        """What it is about, as `diff` calls it."""
        return WHOLE if self.about is None else ROWS[self.about].part


@dataclass(frozen=True)
class Record:
    """All of it, in the order of the rows of variants."""

    evidence: tuple[Evidence, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data; keys are stable within a `version`."""
        return {"version": 1, "claims": [{"part": one.part, **asdict(one)} for one in self.evidence]}


@cache
def record() -> Record:
    """What `tools.claims` gathered from studies/results."""
    read = json.loads((files("anyformer.study") / "evidence.json").read_text(encoding="utf-8"))
    return Record(in_order([Evidence(**one) for one in read]))


def in_order(found: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """By what it is about, the whole last; then by study."""
    rows = [*ROWS, None]
    return tuple(sorted(found, key=lambda one: (rows.index(one.about), one.study)))
