"""Specifications as JSON and YAML, both ways: compact, strict, versioned."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from anyformer.disk import plain
from anyformer.errors import SpecError, among, did_you_mean, errors_of
from anyformer.spec.architecture import Architecture, sized, specification
from anyformer.spec.model import ModelSpec
from anyformer.spec.part import Spec, is_needed
from anyformer.spec.phrase import is_phrase, parse
from anyformer.spec.ranges import MOST_LAYERS
from anyformer.spec.structure import period
from anyformer.spec.within import replaced, the_place, type_at

HEADER = "anyformer"  # the file's first key; its value is the version of the language
LETTERS = "abcdefghijklmopqrstuvwxyz"  # of kinds of layers in a pattern; `n` says how many layers there are


def encode(value: Any, declared: Any = None) -> Any:
    """Plain data: fields at their defaults are left out, and a part with none left is its kind's name alone."""
    if isinstance(value, Spec):
        fields = {f.name: f for f in dataclasses.fields(value)}  # type: ignore[arg-type]
        hints = value.types()
        data = {n: encode(v, hints[n]) for n, v in value.values().items() if v != fields[n].default}
        if type(value) in (declared, *_options(declared)):
            return data
        return {"kind": value.kind, **data} if data else value.kind
    if isinstance(value, tuple):
        item = get_args(declared)[0] if get_args(declared) else None
        return _encode_pattern(value, item) or [encode(v, item) for v in value]
    return float(value) if isinstance(value, float) else value  # numpy's are floats too, which YAML does not know


def decode(data: Any, declared: Any = ModelSpec, path: str = "") -> Any:
    """The value that `data` describes. Raises SpecError naming the path, the value and the nearest name."""
    if options := _options(declared):
        return None if data is None and NoneType in get_args(declared) else _first_that_fits(data, options, path)
    if get_origin(declared) is tuple:
        item = get_args(declared)[0]
        if isinstance(data, dict) and "pattern" in data:
            return _decode_pattern(data, item, path)
        if not isinstance(data, list):
            raise SpecError(f"{path or 'it'} is {data!r}; it must be a list")
        return tuple(_decoded({i: (value, item, f"{path}[{i}]") for i, value in enumerate(data)}).values())
    if isinstance(declared, type) and issubclass(declared, Spec):
        return _decode_spec(data, declared, path)
    return _decode_scalar(data, declared, path)


def dumps(architecture: Architecture, form: Literal["json", "yaml"] = "yaml") -> str:
    """A model's specification as text."""
    data = {HEADER: ModelSpec.version, **encode(specification(architecture), ModelSpec)}
    if form == "json":
        return json.dumps(data, indent=1) + "\n"
    import yaml

    return yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)


def loads(text: str, name: str = "the text") -> ModelSpec:
    """The specification that a JSON or YAML text holds. Raises SpecError, where sizes do not go together too."""
    return sized(decode_file(plain.loads(text, name), name, HEADER, ModelSpec, "specification of ours"), name)


def read(path: str | Path) -> ModelSpec:
    """The specification in a .json, .yaml or .yml file. Raises SpecError, where sizes do not go together too."""
    data, name = plain.read(path, "specification"), str(path)
    return sized(decode_file(data, name, HEADER, ModelSpec, "specification of ours"), name)


def decode_file(data: Any, name: str, header: str, declared: type[Any], what: str) -> Any:
    """The value that a file's data describe, whose first key, `header`, is the language's version. Raises SpecError."""
    version = declared.version
    if not isinstance(data, dict) or header not in data:
        raise SpecError(f"{name} has no first key '{header}: {version}', so it is no {what}")
    if data[header] != version or isinstance(data[header], bool):
        raise SpecError(f"{name} is written in version {data[header]!r} of the language; this is version {version}")
    with errors_of(name):
        return decode({key: value for key, value in data.items() if key != header}, declared)


def _decode_spec(data: Any, declared: type[Spec], path: str) -> Spec:
    where = f"{path}: " if path else ""
    if isinstance(data, str) and is_phrase(data):
        with errors_of(path or "it"):
            data = parse(data)
    fields = {"kind": data} if isinstance(data, str) else data
    if not isinstance(fields, dict):
        raise SpecError(f"{path or 'it'} is {data!r}; it must be a {declared.kind} or the name of one")
    name = fields.get("kind", None if declared.abstract else declared.kind)
    known = {k: c for k, c in Spec.kinds_with(name).items() if issubclass(c, declared) and not c.abstract}
    if not isinstance(name, str) or name not in known:
        strange = isinstance(name, str) and name not in Spec.kinds_with(name)
        own = "; one of your own is known once its file is imported (--import)" if strange else ""
        raise SpecError(f"{where}{name!r} is no kind of {declared.kind}{among(name, sorted(known))}{own}")
    kind = known[name]
    hints = kind.types()
    given = {key: value for key, value in fields.items() if key != "kind"}
    faults = [
        SpecError(f"{where}{name} has no field {key!r}{did_you_mean(key, hints)}; it has {', '.join(hints)}")
        for key in given
        if key not in hints
    ]
    inside = {k: (v, hints[k], f"{path}.{k}" if path else k) for k, v in given.items() if k in hints}
    needed = [f.name for f in dataclasses.fields(kind) if is_needed(f) and f.name not in given]  # type: ignore[arg-type]
    if needed:
        faults.append(SpecError(f"{where}{name} needs {', '.join(needed)}"))
    values = _decoded(inside, faults)
    try:
        return kind(**values)
    except SpecError as error:
        raise SpecError(f"{path}: {error}" if path else error) from None


def _decoded(parts: Mapping[Any, tuple[Any, Any, str]], faults: Sequence[SpecError] = ()) -> dict[Any, Any]:
    """The value of each of (data, declared, path). Raises all that is wrong with them, and these faults, at once."""
    values, found = {}, list(faults)
    for key, (data, declared, path) in parts.items():
        try:
            values[key] = decode(data, declared, path)
        except SpecError as error:
            found += error.faults
    if found:
        raise SpecError.of(found)
    return values


def _first_that_fits(data: Any, options: list[Any], path: str) -> Any:
    errors = []
    for option in options:
        try:
            return decode(data, option, path)
        except SpecError as error:
            errors.append(error)
    raise errors[0]


def _options(declared: Any) -> list[Any]:
    union = get_origin(declared) in (Union, UnionType)
    return [option for option in get_args(declared) if option is not NoneType] if union else []


def _decode_scalar(data: Any, declared: Any, path: str) -> Any:
    if get_origin(declared) is Literal:
        if data not in get_args(declared):
            near = did_you_mean(data, map(str, get_args(declared)))
            raise SpecError(f"{path} = {data!r} is none of {', '.join(map(repr, get_args(declared)))}{near}")
        return data
    plain = getattr(declared, "__supertype__", declared)
    if plain is float and isinstance(data, int | float | str) and not isinstance(data, bool):
        try:
            return float(data)  # YAML 1.1 reads 1e-5 as a string
        except (ValueError, OverflowError):
            pass
    if not isinstance(data, plain) or (isinstance(data, bool) and plain is not bool):
        raise SpecError(f"{path} = {data!r} must be of type {plain.__name__}")
    return data


def _encode_pattern(values: tuple[Any, ...], declared: Any) -> dict[str, Any] | None:
    """Write long runs once: {n: 26, pattern: "5a b", a: …, b: …}; the pattern is repeated, and cut, to n."""
    distinct = list(dict.fromkeys(values)) if values and isinstance(values[0], Spec) else []
    if not distinct or len(values) < 2 or len(distinct) == len(values) or len(distinct) > len(LETTERS):
        return None
    names = dict(zip(distinct, LETTERS, strict=False))
    letters = [names[value] for value in values]
    runs = ((len(list(run)), letter) for letter, run in groupby(letters[: period(letters)]))
    pattern = " ".join(f"{n}{letter}" if n > 1 else letter for n, letter in runs)
    return {"n": len(values), "pattern": pattern, **{name: encode(value, declared) for value, name in names.items()}}


def _decode_pattern(data: dict[str, Any], declared: Any, path: str) -> tuple[Any, ...]:
    written = {k: v for k, v in data.items() if k not in ("n", "pattern")}
    alike = {k: v for k, v in written.items() if isinstance(v, dict) and "like" in v}
    kinds = _decoded({k: (v, declared, f"{path}.{k}") for k, v in written.items() if k not in alike})
    kinds |= {letter: _like(changes, kinds, f"{path}.{letter}") for letter, changes in alike.items()}
    once: list[Any] = []
    used = {changes["like"] for changes in alike.values()}
    for word in str(data["pattern"]).split():
        times, letter = word[:-1] or "1", word[-1]
        if not re.fullmatch(r"[1-9][0-9]{0,8}", times) or letter not in (*kinds, *LETTERS):
            raise SpecError(
                f"{path}.pattern: {word!r} is no repeat count and letter among {', '.join(map(str, kinds))}"
            )
        used.add(letter)
        if letter not in kinds:
            raise SpecError(f"{path}.pattern has {letter!r}, which is not written out; give {path}.{letter}")
        once += [kinds[letter]] * min(int(times), MOST_LAYERS + 1)
        _check_depth(len(once), f"{path}.pattern")
    if idle := written.keys() - used:
        key = min(map(str, idle))
        raise SpecError(f"{path}.{key} is no layer of the pattern {data['pattern']!r}; write it there or leave it out")
    n = _decode_scalar(data.get("n", len(once)), int, f"{path}.n")
    if not once or n < 1:
        raise SpecError(
            f"{path}: n = {n!r} layers of the pattern {data['pattern']!r} make no stack; both must be positive"
        )
    _check_depth(n, f"{path}.n")
    return tuple(once[i % len(once)] for i in range(n))


def _like(data: dict[str, Any], kinds: dict[str, Any], path: str) -> Any:
    """One of these kinds with changes: the fields inside it that are named, each by as much of its path as tells it apart."""
    name = data["like"]
    if name not in list(kinds):
        raise SpecError(
            f"{path}.like = {name!r} is none of the letters that are written out: "
            f"{', '.join(map(str, kinds)) or 'none is; write one out'}"
        )
    value = kinds[name]
    for key, change in data.items():
        if key != "like":
            place = the_place(value, key, path)
            value = replaced(value, place, decode(change, type_at(value, place), f"{path}.{key}"))
    return value


def _check_depth(n: int, path: str) -> None:
    if n > MOST_LAYERS:
        raise SpecError(f"{path} makes {n:,} layers; {MOST_LAYERS:,} is the most")
