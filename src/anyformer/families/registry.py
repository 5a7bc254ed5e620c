"""Everything known by name: presets, aliases, lineages and checkpoint families, and how those from outside join them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anyformer.errors import SpecError
from anyformer.families.hf import FAMILIES, Family
from anyformer.families.lineage import Lineage, Preset
from anyformer.families.tree import LINEAGE_OF, LINEAGES, TREE
from anyformer.families.undisclosed import UNDISCLOSED
from anyformer.spec import is_path, parameters, split_variant

PRESETS: dict[str, Preset] = {preset.name: preset for line in LINEAGES for preset in line.presets}
ALIASES: dict[str, str] = {preset.alias: preset.name for preset in PRESETS.values() if preset.alias is not None}


def register(*found: Lineage | Family) -> None:
    """Make lineages with their presets, and checkpoint families, known by name as if they stood in this folder.

    A lineage comes after its parent. What is registered already is passed over. Raises SpecError for a name that is taken or
    cannot be one, and a parent that is not known; then nothing of the value is registered.
    """
    for value in found:
        if isinstance(value, Family):
            if FAMILIES.get(value.hf_type, value) != value:
                raise SpecError(f"a family of model_type {value.hf_type!r} exists already; give yours another")
            FAMILIES[value.hf_type] = value
        elif TREE.get(value.name) != value:
            _check(value)
            TREE[value.name] = value
            for preset in value.presets:
                PRESETS[preset.name], LINEAGE_OF[preset.name] = preset, value
                if preset.alias is not None:
                    ALIASES[preset.alias] = preset.name


def _check(line: Lineage) -> None:
    """Raise SpecError for a lineage that the tree cannot take."""
    if line.name in TREE:
        raise SpecError(f"a lineage {line.name!r} exists already; give yours another name")
    if line.parent not in TREE:
        raise SpecError(f"the lineage {line.name!r} descends from {line.parent!r}, which is none; register that first")
    if line.year < TREE[line.parent].year:
        raise SpecError(f"the lineage {line.name!r} is of {line.year}, {line.parent!r} of {TREE[line.parent].year}")
    taken = {*PRESETS, *ALIASES, *UNDISCLOSED}
    names = [name for preset in line.presets for name in (preset.name, preset.alias) if name is not None]
    for name in names:
        if name in taken or names.count(name) > 1:
            raise SpecError(f"a preset {name!r} exists already; give yours another name")
        if is_path(name) or split_variant(name)[1]:
            raise SpecError(
                f"a preset cannot be called {name!r}, which is a path or a variant; leave out slashes and '+'"
            )
    if line.known not in names:
        raise SpecError(f"the lineage {line.name!r} is known by {line.known!r}, which is none of its presets")


def records(presets: Iterable[Preset], aliases: Mapping[str, str]) -> list[dict[str, Any]]:
    """What lists and completion say of presets, as plain data: name, family, sizes, source."""
    return [
        {
            "name": preset.name,
            "family": preset.family,
            "aliases": [alias for alias, target in aliases.items() if target == preset.name],
            "parameters": parameters(preset.spec).total,
            "published": preset.published,
            "erratum": preset.erratum,
            "layers": preset.spec.n_layers,
            "d_model": preset.spec.stack.d_model,
            "vocab_size": preset.spec.vocab_size,
            "context": preset.spec.context,
            "source": preset.source,
        }
        for preset in presets
    ]


def from_outside() -> list[dict[str, Any]]:
    """The records of presets that were registered, not written here."""
    own = {preset.name for line in LINEAGES for preset in line.presets}
    return records((preset for preset in PRESETS.values() if preset.name not in own), ALIASES)
