"""Everything that is found in an architecture, the worst first."""

from __future__ import annotations

from anyformer.checks.consequences import consequences
from anyformer.checks.errors import errors, misfits
from anyformer.checks.field_comparison import field_comparison
from anyformer.checks.finding import Finding
from anyformer.checks.notes import notes
from anyformer.spec import Architecture, specification


def check(model: Architecture) -> tuple[Finding, ...]:
    """Errors, consequences and notes about an architecture. Nothing is allocated.

    Where the parts do not fit together, the rest would be guesswork: that error is the only finding. Raises SpecError for
    what has no specification.
    """
    spec = specification(model)
    if found := list(misfits(spec)):
        return tuple(found)
    outside = [
        Finding(
            "note", "field", f"{place.name} is {place.shown(place.value)}; published models have {place.range_in_words}"
        )
        for place in field_comparison(spec)
        if place.beyond
    ]
    return (*errors(spec), *consequences(spec), *notes(spec), *outside)
