"""What a user writes to name an architecture or a recipe: a path, or a name that is known, with changes or without."""

from __future__ import annotations

import re
from pathlib import Path

SUFFIXES = (".json", ".yaml", ".yml", ".gguf", ".safetensors")
CHANGE = re.compile(r"\+(?=[A-Za-z][\w.-]*=)")  # what begins a change: `+norm=`, and not the sign in 1e+5


def split_variant(name: str | Path) -> tuple[str, tuple[str, ...]]:
    """The base of `BASE+row=VALUE…` and its changes, none for a plain name; what lies on disk by such a name is a base."""
    words = CHANGE.split(str(name))
    for n in range(len(words), 1, -1):
        path = "+".join(words[:n])
        if ("/" in path or "\\" in path) and Path(path).exists():
            return path, tuple(words[n:])
    return words[0], tuple(words[1:])


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
