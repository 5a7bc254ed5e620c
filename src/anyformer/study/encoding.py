"""Frozen dataclasses to and from plain JSON values, strictly: what is missing, surplus or of another type is named."""

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from anyformer.disk.foreign import read_json
from anyformer.errors import UsageError, did_you_mean
from anyformer.spec.part import is_needed

T = TypeVar("T")


def encode(value: object) -> Any:
    """`value` as what JSON knows: dataclasses become objects, tuples arrays, floats that are not finite null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # standard JSON has no NaN; `decode` makes NaN of it again where the field is a float
    return value


def decode(kind: type[T], data: object, where: str = "") -> T:
    """The dataclass `kind` that `encode` wrote as `data`.

    Raises UsageError for a missing or unknown field and for a value of another type, naming its place under `where`.
    """
    return _decode(kind, data, where or kind.__name__)


def _decode(kind: Any, data: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _decode_fields(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*_decode_named(kind, data, where))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return tuple(_decode(arguments[0], item, f"{where}[{at}]") for at, item in enumerate(_array(data, where)))
    if origin in (types.UnionType, typing.Union):  # only `X | None` occurs here
        return None if data is None else _decode(arguments[0], data, where)
    if kind is float:
        if data is None:
            return math.nan
        if isinstance(data, int | float) and not isinstance(data, bool):
            return float(data)
    elif isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise UsageError(f"{where} must be {kind.__name__}, not {data!r}")


def _decode_fields(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UsageError(f"{where} must be an object with named fields, not {type(data).__name__}")
    hints = typing.get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for name in data:
        if name not in known:
            raise UsageError(f"{where} has no field '{name}'{did_you_mean(name, known)}")
    for name, field in known.items():
        if name not in data and is_needed(field):
            raise UsageError(f"{where} lacks its field '{name}'")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in data.items()})


def _decode_named(kind: Any, data: Any, where: str) -> list[Any]:
    names = kind._fields
    items = _array(data, where)
    if len(items) != len(names):
        raise UsageError(f"{where} must hold {len(names)} values ({', '.join(names)}), not {len(items)}")
    hints = typing.get_type_hints(kind)
    return [_decode(hints[name], item, f"{where}.{name}") for name, item in zip(names, items, strict=True)]


def _array(data: Any, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise UsageError(f"{where} must be an array, not {type(data).__name__}")
    return data


def refuse_other(file: Path, names: Sequence[str], wanted: str, what: str) -> None:
    """Raise UsageError where results are there already that say something else under these names: they would be lost."""
    said = read_json(file, UsageError) if file.is_file() else None
    for name in names:
        said = said.get(name) if isinstance(said, dict) else None
    if said not in (None, wanted):
        raise UsageError(f"{file} holds {what}; give another --out, or delete it")
