"""Everything that is found in an architecture, the worst first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from anyformer.descriptions.check.consequences import consequences
from anyformer.descriptions.check.errors import errors, misfits
from anyformer.descriptions.check.field_comparison import field_comparison
from anyformer.descriptions.check.notes import notes
from anyformer.spec import Architecture, specification

Severity = Literal["error", "consequence", "note"]  # it cannot work; what follows from a choice; what is unusual


@dataclass(frozen=True)
class Finding:
    """A sentence about one subject."""

    severity: Severity
    about: str  # attention, cache, export, positions, vocabulary …
    text: str

    def __str__(self) -> str:
        return f"{self.severity}, {self.about}: {self.text}"


def check(model: Architecture) -> tuple[Finding, ...]:
    """Errors, consequences and notes about an architecture. Nothing is allocated.

    Where the parts do not fit together, the rest would be guesswork: that error is the only finding. Raises SpecError for
    what has no specification.
    """
    spec = specification(model)
    if found := list(misfits(spec)):
        return tuple(Finding("error", *each) for each in found)
    unusual = (
        ("field", f"{p.name} is {p.shown(p.value)}; published models have {p.range_in_words}")
        for p in field_comparison(spec)
        if p.beyond
    )
    found = zip(get_args(Severity), (errors(spec), consequences(spec), (*notes(spec), *unusual)), strict=True)
    return tuple(Finding(severity, *each) for severity, said in found for each in said)
