"""What a file of this folder says: a lineage of models, its presets, and what is published about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import NamedTuple

from anyformer.recipe import RECIPES, Recipe
from anyformer.spec import ModelSpec

# What is published of a training beside what a recipe holds: a row of the card → its words; "source" is that of all.
Facts = Mapping[str, str]


@dataclass(frozen=True)
class Preset:
    """One published model. Wherever a function takes a ModelSpec, it takes a preset too.

    What a preset leaves out of its family, source, tokenizer, recipe and training is its lineage's.
    """

    name: str
    spec: ModelSpec
    # Parameters as the source prints them: "6.7B"; None where it prints none.
    published: str | None = None
    # Why our count, or another figure, differs from what is printed.
    erratum: str | None = None
    family: str = ""
    # What it is called where its size is not meant: as its lineage is, say.
    alias: str | None = None
    # Authors, year, arXiv id, table.
    source: str = ""
    # Its kind and size, as published.
    tokenizer: str = ""
    recipe: Recipe | None = None
    training: Facts | None = field(default=None, hash=False)


class Misprint(NamedTuple):
    """A cell of `anyformer history` that published versions of the table print otherwise, and why ours differs."""

    column: str
    printed: str
    reason: str


@dataclass(frozen=True)
class Lineage:
    """One generation of models that share an architecture but for their sizes."""

    name: str
    # None for the first alone.
    parent: str | None
    year: int
    # Where the architecture is described.
    source: str
    # From its parent, in a phrase.
    changed: str
    presets: tuple[Preset, ...]
    # The preset that it is known by; the last where nothing is said.
    known: str = ""
    misprints: tuple[Misprint, ...] = ()
    # What the presets have where they do not say otherwise: their family (the lineage's name), where their sizes are printed,
    # their tokenizer, what is published of their training.
    family: str = ""
    sizes: str = ""
    tokenizer: str = ""
    training: Facts | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "presets", tuple(map(self._completed, self.presets)))
        object.__setattr__(self, "known", self.known or self.presets[-1].name)

    def _completed(self, preset: Preset) -> Preset:
        return replace(
            preset,
            family=preset.family or self.family or self.name,
            source=preset.source or self.sizes,
            tokenizer=preset.tokenizer or self.tokenizer,
            recipe=preset.recipe or RECIPES.get(preset.name),
            training=preset.training or self.training,
        )


def modules(package: str, paths: Iterable[str], first: tuple[str, ...]) -> Iterator[ModuleType]:
    """The files of a package: those that `first` names in its order, then the others by name."""
    names = {info.name for info in iter_modules(paths)}
    for name in (*first, *sorted(names.difference(first))):
        yield import_module(f"{package}.{name}")
