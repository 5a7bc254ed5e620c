"""Whatever is described by a specification stands for it: a name, a preset, a model, the specification itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from anyformer.errors import SpecError
from anyformer.spec.model import ModelSpec


class HasSpec(Protocol):
    """Has the specification of a whole model."""

    @property
    def spec(self) -> ModelSpec: ...


Architecture = ModelSpec | HasSpec | str | Path

_by_name: list[Callable[[str | Path], ModelSpec]] = []


def read_names_with(load: Callable[[str | Path], ModelSpec]) -> None:
    """Let `specification` take names and paths: this room knows no presets and no files of models, `hub.load_spec` does."""
    _by_name[:] = [load]


def specification(architecture: Architecture) -> ModelSpec:
    """The specification that this is, has, or names. Raises SpecError for anything else, and what `load_spec` does."""
    if isinstance(architecture, ModelSpec):
        return architecture
    if isinstance(architecture, str | Path) and _by_name:
        return _by_name[0](architecture)
    found = getattr(architecture, "spec", None)
    if isinstance(found, ModelSpec):
        return found
    given = " ".join(repr(architecture).split())
    given = given if len(given) <= 60 else f"{given[:60]}…"
    raise SpecError(f"{given} is no specification and has none; give a name, a ModelSpec, a Preset or a model")
