"""Published architectures, a lineage a file."""

from __future__ import annotations

from anyformer.errors import SpecError, did_you_mean
from anyformer.families import gpt2, llama, transformer
from anyformer.families.gpt2_hf import GPT2
from anyformer.families.llama_hf import LLAMA
from anyformer.families.mapping import Family
from anyformer.families.preset import Preset

ALIASES = {"transformer": "transformer-base", "llama": "llama-7b", "llama2": "llama2-7b", "llama3": "llama3-8b"}
PRESETS: dict[str, Preset] = {p.name: p for family in (transformer, gpt2, llama) for p in family.PRESETS}
FAMILIES: dict[str, Family] = {family.hf_type: family for family in (GPT2, LLAMA)}  # those with a class in transformers


def find(name: str) -> Preset | None:
    """Return a preset by its name, or by its family's short name; None where there is none."""
    return PRESETS.get(ALIASES.get(name, name))


def preset(name: str) -> Preset:
    """Return a preset by its name, or by its family's short name. Raises SpecError with the nearest name."""
    found = find(name)
    if found is None:
        raise SpecError(
            f"there is no preset {name!r}{did_you_mean(name, [*PRESETS, *ALIASES])}; `anyformer presets` lists them"
        )
    return found


def presets(family: str | None = None) -> tuple[str, ...]:
    """Return the names of all presets, or of one family's. Raises SpecError for an unknown family."""
    families = {p.family for p in PRESETS.values()}
    if family is not None and family not in families:
        raise SpecError(
            f"there is no family {family!r}{did_you_mean(family, families)}; there are {', '.join(sorted(families))}"
        )
    return tuple(p.name for p in PRESETS.values() if family in (None, p.family))


__all__ = ["ALIASES", "FAMILIES", "PRESETS", "Family", "Preset", "find", "preset", "presets"]
