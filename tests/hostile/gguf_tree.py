"""A GGUF file's head as a tree and back, so that it can be damaged where it means something."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from tests.hostile.trees import Pairs, Raw, mutate_tree

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.content, self.at)
        self.at += struct.calcsize(code)
        return value

    def text(self) -> str:
        size = self.number("Q")
        self.at += size
        return self.content[self.at - size : self.at].decode("utf-8", "surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            return {"of": inner, "values": [self.value(inner) for _ in range(count)]}
        return self.number(_NUMBERS[kind])


def read(content: bytes) -> tuple[Any, bytes]:
    """(the head as plain data, the tensors' bytes) of a file. Raises struct.error, KeyError … for a damaged one."""
    reader = _Reader(content)
    head: dict[str, Any] = {"magic": reader.number("I"), "version": reader.number("I")}
    n_tensors, n_settings = reader.number("Q"), reader.number("Q")
    settings, tensors = {}, {}
    for _ in range(n_settings):
        key, kind = reader.text(), reader.number("I")
        settings[key] = {"type": kind, "value": reader.value(kind)}
    for _ in range(n_tensors):
        name = reader.text()
        shape = [reader.number("Q") for _ in range(reader.number("I"))]
        tensors[name] = {"shape": shape, "type": reader.number("I"), "offset": reader.number("Q")}
    data = content[-(-reader.at // _ALIGNMENT) * _ALIGNMENT :]
    return {**head, "settings": settings, "tensors": tensors}, data


def write(head: Any, data: bytes) -> bytes:
    """The file that a head describes, whether it makes sense or not."""
    found = dict(head) if isinstance(head, Pairs) else {}
    settings, tensors = _items(found.get("settings")), _items(found.get("tensors"))
    out = _int(found.get("magic", 0), "I") + _int(found.get("version", 3), "I")
    out += struct.pack("<QQ", len(tensors), len(settings))
    for key, setting in settings:
        fields = dict(setting) if isinstance(setting, Pairs) else {"value": setting}
        kind = fields.get("type", _STRING)
        kind, body = _value(kind if isinstance(kind, int) else _STRING, fields.get("value"))
        out += _text(key) + _int(kind, "I") + body
    for name, tensor in tensors:
        fields = dict(tensor) if isinstance(tensor, Pairs) else {}
        shape = fields.get("shape")
        shape = shape if isinstance(shape, list) else []
        out += _text(name) + _int(len(shape), "I") + b"".join(_int(n, "Q") for n in shape)
        out += _int(fields.get("type", 0), "I") + _int(fields.get("offset", 0), "Q")
    return out + bytes(-len(out) % _ALIGNMENT) + data


def mutate(content: bytes, random: Random) -> tuple[bytes, str]:
    """A file with its head changed in one place, and how in words. Raises whatever reading a damaged one does."""
    head, data = read(content)
    changed, said = mutate_tree(head, random)
    return write(changed, data), said


def _items(tree: Any) -> list[tuple[Any, Any]]:
    return list(tree) if isinstance(tree, Pairs) else []


def _text(value: Any) -> bytes:
    content = str(value).encode("utf-8", "surrogateescape" if not isinstance(value, Raw) else "replace")
    return struct.pack("<Q", len(content)) + content


def _int(value: Any, code: str) -> bytes:
    number = int(value) if isinstance(value, int) else len(str(value))
    size = struct.calcsize(code)
    return (number % 256**size).to_bytes(size, "little")


def _value(kind: int, value: Any) -> tuple[int, bytes]:
    """(the type that is said, the bytes) of a value: what it is, where it cannot be of its type."""
    if isinstance(value, Pairs) and "values" in (fields := dict(value)):
        inner, values = fields.get("of", 4), fields["values"]
        values = values if isinstance(values, list) else [values]
        inner = inner if isinstance(inner, int) else 4
        body = b"".join(_value(inner, each)[1] for each in values)
        return kind, _int(inner, "I") + struct.pack("<Q", len(values)) + body
    if kind == _STRING or isinstance(value, str) or kind not in _NUMBERS:
        return (_STRING if kind in _NUMBERS else kind), _text(value)
    if _NUMBERS[kind] in "fd":
        try:
            return kind, struct.pack("<" + _NUMBERS[kind], value)
        except (struct.error, OverflowError):
            return kind, struct.pack("<" + _NUMBERS[kind], float("nan"))
    return kind, _int(value, _NUMBERS[kind].replace("?", "B"))
