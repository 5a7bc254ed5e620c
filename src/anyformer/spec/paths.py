"""What a user writes to name an architecture or a recipe: a path, or a name that is known."""

from __future__ import annotations

from pathlib import Path

SUFFIXES = (".json", ".yaml", ".yml", ".gguf", ".safetensors")


def is_path(name: str | Path) -> bool:
    """Whether this is a path: it has a slash or the suffix of a file. Anything else is a known name."""
    return isinstance(name, Path) or "/" in name or "\\" in name or Path(name).suffix.lower() in SUFFIXES


def label(name: str | Path) -> str:
    """What to call an architecture in a table: its known name, or the last part of its path."""
    if not is_path(name):
        return str(name)
    path = Path(name)
    last = path.name or path.absolute().name
    return last.removesuffix(path.suffix) if path.suffix.lower() in SUFFIXES else last
