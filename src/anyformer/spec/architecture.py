"""What stands for an architecture: its specification, whatever has one, a name or a path, with changes or without."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Protocol

from anyformer.errors import SpecError, did_you_mean, errors_of
from anyformer.spec.model import ModelSpec
from anyformer.spec.part import Place, tensors

SUFFIXES = (".json", ".yaml", ".yml", ".gguf", ".safetensors")
CHANGE = re.compile(r"\+(?=[A-Za-z][\w.-]*=)")  # what begins a change: `+norm=`, and not the sign in 1e+5


class HasSpec(Protocol):
    """Has the specification of a whole model."""

    @property
    def spec(self) -> ModelSpec: ...


Architecture = ModelSpec | HasSpec | str | Path


def specification(architecture: Architecture) -> ModelSpec:
    """The specification that this is, has, or names. Raises SpecError for anything else, and what `load_spec` does."""
    if isinstance(architecture, ModelSpec):
        return architecture
    if isinstance(architecture, str | Path):
        return import_module("anyformer.hub").load_spec(architecture)  # presets and files are known there
    found = getattr(architecture, "spec", None)
    if isinstance(found, ModelSpec):
        return found
    given = " ".join(repr(architecture).split())
    given = given if len(given) <= 60 else f"{given[:60]}…"
    raise SpecError(f"{given} is no specification and has none; give a name, a ModelSpec, a Preset or a model")


def split_variant(name: str | Path) -> tuple[str, tuple[str, ...]]:
    """The base of `BASE+row=VALUE…` and its changes, none for a plain name; what lies on disk by such a name is a base."""
    words = CHANGE.split(str(name))
    for n in range(len(words), 1, -1):
        path = "+".join(words[:n])
        if ("/" in path or "\\" in path) and Path(path).exists():
            return path, tuple(words[n:])
    return words[0], tuple(words[1:])


def no_preset(name: str, known: Collection[str]) -> str:
    """What is said of a name that is not among the presets': a change without its value, a path without its slash, or a slip."""
    base, plus, row = name.rpartition("+")
    if plus and base in known:
        return f"{name}: a change is +ROW=VALUE, as in {base}+{row.partition('=')[0] or 'norm'}=…"
    path = f"; if you mean the path, write './{'' if name == '.' else name}'" if os.path.exists(name) else ""
    return f"there is no preset {name!r}{did_you_mean(name, known)}{path}; `anyformer presets` lists them"


def sized(spec: ModelSpec, name: str) -> ModelSpec:
    """The specification, whose sizes go together. Raises SpecError where they do not, which begins with its name."""
    with errors_of(name):
        for _ in tensors(spec, Place()):
            pass  # sizes are refused where they meet
    return spec


def is_path(name: str | Path) -> bool:
    """Whether this is, or changes, a path: it has a slash or the suffix of a file. Anything else is a known name."""
    if isinstance(name, Path):
        return True
    base, _ = split_variant(name)
    return "/" in base or "\\" in base or Path(base).suffix.lower() in SUFFIXES


def label(name: str | Path) -> str:
    """What to call an architecture in a table: its known name, or the last part of its path; changes as they are said."""
    base, changes = split_variant(name)
    if is_path(name):
        path = Path(base)
        last = path.name or path.absolute().name
        base = last.removesuffix(path.suffix) if path.suffix.lower() in SUFFIXES else last
    sides = (change.partition("=") for change in changes)
    return "+".join([base, *(f"{left}={label(value)}" for left, _, value in sides)])
