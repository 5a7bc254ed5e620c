"""Published architectures, a lineage a file."""

from __future__ import annotations

from anyformer.errors import SpecError, among
from anyformer.families.classifier import with_classifier
from anyformer.families.hf import FAMILIES, Family
from anyformer.families.lineage import Lineage, Preset
from anyformer.families.registry import ALIASES, PRESETS, find, register
from anyformer.families.undisclosed import UNDISCLOSED, Undisclosed
from anyformer.spec import Architecture, no_preset
from anyformer.spec.outside import load_installed


def as_preset(model: Architecture) -> Architecture:
    """The preset that a name is of, which says more than its specification; anything else as it is."""
    return (find(model) if isinstance(model, str) else None) or model


def preset(name: str) -> Preset:
    """A preset by its name or its alias.

    Raises SpecError with the nearest name, or, for a model that is not public, with what is missing.
    """
    if name in UNDISCLOSED:
        raise UNDISCLOSED[name].refusal()
    found = find(name)
    if found is None:
        raise SpecError(no_preset(name, [*PRESETS, *ALIASES]))
    return found


def presets(family: str | None = None) -> tuple[str, ...]:
    """The names of all presets, or of one family's. Raises SpecError for an unknown family."""
    families = {p.family for p in PRESETS.values()}
    if family is not None and family not in families:
        raise SpecError(f"there is no family {family!r}{among(family, sorted(families))}")
    return tuple(p.name for p in PRESETS.values() if family in (None, p.family))


__all__ = [
    "ALIASES",
    "FAMILIES",
    "PRESETS",
    "UNDISCLOSED",
    "Family",
    "Lineage",
    "Preset",
    "Undisclosed",
    "as_preset",
    "find",
    "preset",
    "presets",
    "register",
    "with_classifier",
]

load_installed()  # last: what is installed imports from here
