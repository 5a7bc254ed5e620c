"""Plain data from a file of ours, bounded: YAML and JSON that hold texts, numbers, lists and mappings, and no more.

A file is small, is nested a little, and is no larger once its aliases are written out; its keys are texts, each there once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from anyformer.errors import AnyformerError, SpecError

LARGEST = 2**18  # bytes of a file, and values and characters of what it holds
DEEPEST = 64  # lists and mappings inside each other
LONGEST_NUMBER = 100  # characters


def read(
    path: str | Path, what: str = "file", error: type[AnyformerError] = SpecError, *, largest: int = LARGEST
) -> Any:
    """The data of a .json, .yaml or .yml file; `what` it holds is named where it cannot be read. Raises `error`."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(largest + 1)
        return loads(content.decode(), str(path), error, largest=largest)
    except OSError as problem:
        raise error(f"cannot read the {what} {path}: {problem.strerror or problem}") from None
    except UnicodeDecodeError as problem:
        raise error(f"cannot read the {what} {path}: it is not UTF-8 ({problem.reason} at {problem.start})") from None


def loads(text: str, name: str = "the text", error: type[AnyformerError] = SpecError, *, largest: int = LARGEST) -> Any:
    """The data that a JSON or YAML text holds. Raises `error` with one line that begins with `name`."""
    try:
        if len(text) > largest:
            raise ValueError(f"is larger than {largest:,} bytes")
        data = _json(text) if re.match(r'\s*\{\s*["}]', text) else _yaml(text)
        _bound(data, largest)
        return data
    except RecursionError:
        raise error(f"{name} {_NESTED}") from None
    except ValueError as problem:
        raise error(f"{name} {problem}") from None


_NESTED = f"is nested more than {DEEPEST} deep"


def _bound(data: Any, largest: int) -> None:
    """Refuse what is nested deep or, aliases written out, large; and a text that no file can hold."""
    left, size = [(data, 0)], 1
    while left:
        item, depth = left.pop()
        if depth > DEEPEST:
            raise ValueError(_NESTED)
        if isinstance(item, str):
            size += len(item)
            if any("\ud800" <= letter <= "\udfff" for letter in item):
                raise ValueError(f"holds {item!r}, which is no Unicode")
        inner = [*item, *item.values()] if isinstance(item, dict) else item if isinstance(item, list) else ()
        size += len(inner)
        if size > largest:
            raise ValueError(f"holds more than {largest:,} values and characters; write fewer aliases, or less")
        left += [(each, depth + 1) for each in inner]


def _mapping(pairs: Iterable[tuple[Any, Any]], where: str = "") -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            said = "a list or mapping as a key" if isinstance(key, list | dict) else f"the key {key!r}"
            raise ValueError(f"has {said}{where}; keys are texts, which quotes make them")
        if key in data:
            raise ValueError(f"has the key {key!r} twice{where}; leave one out")
        data[key] = value
    return data


def _short(text: str) -> str:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"has a number of {len(text):,} characters; {LONGEST_NUMBER} is the most")
    return text


def _json(text: str) -> Any:
    def whole(digits: str) -> int:
        return int(_short(digits))

    def number(digits: str) -> float:
        return float(_short(digits))

    try:
        return json.loads(text, object_pairs_hook=_mapping, parse_int=whole, parse_float=number)
    except json.JSONDecodeError as problem:
        raise ValueError(f"is neither JSON nor YAML ({problem})") from None


def _yaml(text: str) -> Any:
    import yaml

    depth = 0
    try:
        for event in yaml.parse(text, Loader=_loader()):  # composing, which comes next, goes as deep as the text
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise ValueError(_NESTED)
            if getattr(event, "tag", None) is not None:
                raise ValueError(f"has the tag {event.tag!r}{_line(event)}; plain data has none, leave it out")
        return yaml.load(text, Loader=_loader())
    except yaml.YAMLError as problem:
        if "nesting depth" in str(problem):  # the parser's own bound, which is a thousand, comes first in one long line
            raise ValueError(_NESTED) from None
        raise ValueError(f"is neither JSON nor YAML ({' '.join(str(problem).split())})") from None


def _line(node: Any) -> str:
    return f" in line {node.start_mark.line + 1}"


@cache
def _loader() -> Any:
    """PyYAML's loader, in C where there is one, of texts, numbers, lists and mappings; no dates, no keys that merge."""
    import yaml

    safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def mapping(loader: Any, node: Any) -> Iterator[dict[str, Any]]:
        data: dict[str, Any] = {}
        yield data
        data.update(_mapping(loader.construct_pairs(node), f" in the mapping{_line(node)}"))

    def number(loader: Any, node: Any) -> int | float:
        found = re.fullmatch(r"([-+]?(0|[1-9][0-9_]*))|[-+]?[0-9_]*\.[^:]*", _short(node.value))
        if not found:  # YAML 1.1 reads 017 as 15 and 1:30 as 90
            raise ValueError(f"has the number {node.value!r}{_line(node)}; write it in decimal digits")
        return int(node.value.replace("_", "")) if found[1] else safe.construct_yaml_float(loader, node)

    def others(loader: Any, node: Any) -> Any:
        kind = node.tag.rpartition(":")[2]
        raise ValueError(f"has the {kind} {node.value!r}{_line(node)}; write it in quotes")

    class Plain(safe):
        yaml_constructors = {
            f"tag:yaml.org,2002:{kind}": constructor
            for kind, constructor in {
                "null": safe.construct_yaml_null,
                "bool": safe.construct_yaml_bool,
                "str": safe.construct_yaml_str,
                "seq": safe.construct_yaml_seq,
                "map": mapping,
                "int": number,
                "float": number,
            }.items()
        } | {None: others}

    return Plain
