"""Everything known by name: presets, aliases, lineages and checkpoint families, and how those from outside join them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from anyformer.errors import SpecError
from anyformer.families.files import Shelf, file_of
from anyformer.families.hf import FAMILIES, Family, in_all_shapes
from anyformer.families.lineage import Lineage, Preset
from anyformer.families.tree import LINEAGE_OF, PACKAGE, TREE, lineages, lineages_in
from anyformer.families.undisclosed import UNDISCLOSED
from anyformer.spec import is_path, parameters, split_variant

PRESETS = Shelf(lambda: {preset.name: preset for line in lineages() for preset in line.presets})
ALIASES = Shelf(lambda: {preset.alias: preset.name for preset in PRESETS.values() if preset.alias is not None})
_REGISTERED: set[tuple[type, str]] = set()  # presets and checkpoint families from outside, by name


def find(name: str) -> Preset | None:
    """A preset by its name or its alias; None where there is none. The file that is known to have it is read alone."""
    file = file_of(name, "presets", PACKAGE)
    near = (preset for line in (lineages_in(file) if file else ()) for preset in line.presets if name in preset.names)
    return next(near, None) or PRESETS.get(ALIASES.get(name, name))


def register(*found: Lineage | Family) -> None:
    """Make lineages with their presets, and checkpoint families, known by name as if they stood in this folder.

    A lineage comes after its parent. One that is registered already is passed over, and a family of the same class takes the
    place of what was registered before: a file or a cell may be run again. Raises SpecError for a name that is taken or cannot
    be one, and for a parent that is not known; nothing of that value is registered then.
    """
    for value in found:
        if isinstance(value, Family):
            known = FAMILIES.get(value.hf_type, value)
            ours = value.hf_type in FAMILIES and (Family, value.hf_type) not in _REGISTERED
            if ours or known.architecture != value.architecture:
                raise SpecError(
                    f"a family of model_type {value.hf_type!r} exists already ({known.architecture}); give yours another"
                )
            FAMILIES[value.hf_type] = in_all_shapes(value)
            _REGISTERED.add((Family, value.hf_type))
        elif TREE.get(value.name) != value:
            _check(value)
            TREE[value.name] = value
            for preset in value.presets:
                _REGISTERED.add((Preset, preset.name))
                PRESETS[preset.name], LINEAGE_OF[preset.name] = preset, value
                if preset.alias is not None:
                    ALIASES[preset.alias] = preset.name


def _check(line: Lineage) -> None:
    """Raise SpecError for a lineage that the tree cannot take."""
    if line.name in TREE:
        raise SpecError(f"a lineage {line.name!r} exists already; give yours another name")
    parent = TREE.get(line.parent or "")
    if parent is None:
        raise SpecError(
            f"the lineage {line.name!r} descends from {line.parent!r}, which is none; register that first, "
            "or name the lineage that it changed (`anyformer history` lists them)"
        )
    if line.year < parent.year:
        raise SpecError(
            f"the lineage {line.name!r} is of {line.year}, {parent.name!r} of {parent.year}; mend the year or the parent"
        )
    names = [name for preset in line.presets for name in preset.names]
    for name in names:
        if name in PRESETS or name in ALIASES or name in UNDISCLOSED or names.count(name) > 1:
            raise SpecError(f"a preset {name!r} exists already; give yours another name")
        if is_path(name) or split_variant(name)[1]:
            raise SpecError(
                f"a preset cannot be called {name!r}, which is a path or a variant; leave out slashes, suffixes and '+'"
            )
    if line.known not in names:
        raise SpecError(
            f"the lineage {line.name!r} is known by {line.known!r}, which is none of its presets; they are {', '.join(names)}"
        )


def from_outside() -> tuple[Preset, ...]:
    """The presets that were registered, not written here."""
    return tuple(p for name, p in PRESETS.items() if (Preset, name) in _REGISTERED) if _REGISTERED else ()


def records(presets: Iterable[Preset]) -> list[dict[str, Any]]:
    """What lists say of presets, as plain data: name, family, sizes, source."""
    return [
        {
            "name": preset.name,
            "family": preset.family,
            "aliases": list(preset.names[1:]),
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
