"""What a file of this folder says: a lineage of models, its presets, and what is published about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

    def __str__(self) -> str:
        size = "" if self.published is None else f", {self.published} parameters"
        return f"{self.name}, of the family {self.family}{size}: {self.source}"

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and its alias where it has one."""
        return (self.name,) if self.alias is None else (self.name, self.alias)


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
    # The preset that it is known by.
    known: str
    misprints: tuple[Misprint, ...]


class Origin(NamedTuple):
    """Where a lineage comes from: its name, its parent, the year, and where its architecture is described."""

    name: str
    parent: str | None
    year: int
    source: str

    def lineage(
        self,
        changed: str,
        *presets: Preset,
        known: str = "",
        misprints: tuple[Misprint, ...] = (),
        family: str = "",
        sizes: str = "",
        tokenizer: str = "",
        training: Facts | None = None,
    ) -> Lineage:
        """The lineage: what it changed, and its presets; where nothing is said it is known by the last.

        The others are what presets have that do not say otherwise: their family (the lineage's name), where their sizes are
        printed, their tokenizer, what is published of their training.
        """
        completed = (
            replace(
                preset,
                family=preset.family or family or self.name,
                source=preset.source or sizes,
                tokenizer=preset.tokenizer or tokenizer,
                recipe=preset.recipe or RECIPES.get(preset.name),
                training=preset.training or training,
            )
            for preset in presets
        )
        return Lineage(*self, changed, tuple(completed), known or presets[-1].name, misprints)
