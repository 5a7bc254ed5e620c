"""A preset: a published architecture as a record, its specification beside its source and its published figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec


@dataclass(frozen=True)
class Preset:
    """One published model. Wherever a function takes a ModelSpec, it takes a preset too."""

    name: str
    family: str
    spec: ModelSpec
    source: str  # authors, year, arXiv id, table
    published: str | None  # parameters as the source prints them: "6.7B"; None where it prints none
    erratum: str | None = None  # why our count, or another figure, differs from what is printed
    tokenizer: str = ""  # its kind and size, as published
    recipe: Recipe | None = None  # how it was trained, where that is published
    training: Mapping[str, str] | None = field(default=None, hash=False)  # what else of it is, in words, and the source
