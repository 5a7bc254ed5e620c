"""The files of a package and what stands in them: all are read where names are listed, one where a name is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import cache
from importlib import import_module, resources
from pkgutil import iter_modules
from types import ModuleType
from typing import Literal, TypeVar

V = TypeVar("V")


def modules(package: str, paths: Iterable[str], first: tuple[str, ...]) -> Iterator[ModuleType]:
    """The files of a package: those that `first` names in its order, then the others by name."""
    names = {info.name for info in iter_modules(paths)}
    for name in (*first, *sorted(names.difference(first))):
        yield import_module(f"{package}.{name}")


@cache
def _catalogued() -> dict[str, dict[str, str]]:
    return json.loads(resources.files("anyformer").joinpath("families", "catalogue.json").read_bytes())["files"]


def file_of(name: str, what: Literal["presets", "families"], package: str) -> ModuleType | None:
    """The file of a package in which a name is known to stand, by the catalogue that `make catalogue` writes."""
    found = _catalogued()[what].get(name)
    return None if found is None else import_module(f"{package}.{found}")


class Shelf(MutableMapping[str, V]):
    """Names and what they stand for in files, which are read when one first looks. `near`: what the file of a name holds."""

    def __init__(self, read: Callable[[], Mapping[str, V]], near: Callable[[str], Mapping[str, V]] = lambda name: {}):
        self._read, self._near = read, near
        self._found: dict[str, V] = {}
        self._is_whole = False

    def _whole(self) -> dict[str, V]:
        if not self._is_whole:
            self._found = {**self._read(), **self._found}
            self._is_whole = True
        return self._found

    def __getitem__(self, name: str) -> V:
        if not self._is_whole and name not in self._found:
            self._found = {**self._near(name), **self._found}
        return self._found[name] if name in self._found else self._whole()[name]

    def __setitem__(self, name: str, value: V) -> None:
        self._whole()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._whole()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())
