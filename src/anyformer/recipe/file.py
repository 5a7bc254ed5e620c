"""Recipes as JSON and YAML files: strict, versioned, fields at their defaults left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from anyformer.disk.run_layout import RECIPE
from anyformer.errors import SpecError
from anyformer.recipe.recipe import Recipe
from anyformer.spec import decode, encode

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
    import yaml

    try:
        data = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise SpecError(f"{name} is neither JSON nor YAML ({where})") from None
    if not isinstance(data, dict) or HEADER not in data:
        raise SpecError(f"{name} has no first key '{HEADER}: {Recipe.version}', so it is no recipe")
    version = data.pop(HEADER)
    if version != Recipe.version:
        raise SpecError(f"{name} is written in version {version!r} of the language; this is version {Recipe.version}")
    try:
        return decode(data, Recipe)
    except SpecError as error:
        raise SpecError(f"{name}: {error}") from None


def of_run(directory: str | Path) -> Recipe | None:
    """The recipe of a run, from its directory; None where that is no run. Raises SpecError."""
    file = Path(directory) / RECIPE
    return read(file) if file.is_file() else None


def read(path: str | Path) -> Recipe:
    """The recipe in a .json, .yaml or .yml file. Raises SpecError."""
    try:
        return loads(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the recipe {path}: {error}") from None
