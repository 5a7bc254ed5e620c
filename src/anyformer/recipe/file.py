"""Recipes as JSON and YAML files: strict, versioned, fields at their defaults left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from anyformer.disk import plain
from anyformer.disk.run_layout import RECIPE, is_checkpoint, run_of
from anyformer.disk.seal import EXTENDED, read_record, sealed
from anyformer.recipe.recipe import Recipe
from anyformer.spec import decode_file, encode

HEADER = "recipe"  # the file's first key; its value is the version of the language


def dumps(recipe: Recipe, form: Literal["json", "yaml"] = "yaml") -> str:
    """A recipe as text."""
    data = {HEADER: Recipe.version, **encode(recipe, Recipe)}
    if form == "json":
        return json.dumps(data, indent=1) + "\n"
    import yaml

    return yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=False)


def loads(text: str, name: str = "the text") -> Recipe:
    """The recipe that a JSON or YAML text holds. Raises SpecError."""
    return decode_file(plain.loads(text, name), name, HEADER, Recipe, "recipe")


def read(path: str | Path) -> Recipe:
    """The recipe in a .json, .yaml or .yml file. Raises SpecError."""
    return decode_file(plain.read(path, "recipe"), str(path), HEADER, Recipe, "recipe")


def of_run(directory: str | Path) -> Recipe | None:
    """The recipe of a run, from its directory or a checkpoint's in it, up to where it goes; None where there is no run.

    Raises SpecError, CheckpointError.
    """
    place = sealed(Path(directory), only=())
    run = (run_of(place) if is_checkpoint(place) else None) or place
    return extended(read(run / RECIPE), read_record(run)) if (run / RECIPE).is_file() else None


def extended(begun: Recipe, record: Mapping[str, Any]) -> Recipe:
    """The recipe that a run was begun with, with the tokens that its record has where it went on beyond it."""
    return begun.but(tokens=record["tokens"]) if record.get(EXTENDED) else begun
