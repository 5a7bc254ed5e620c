"""What a GGUF file says of itself: its settings, and where each tensor lies. ggml's docs/gguf.md, versions 2 and 3.

Every count and length is held against the file's size before anything is made of it.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MAGIC, VERSIONS = 0x46554747, (2, 3)
LARGEST_HEADER = 1 << 28  # bytes of settings; vocabularies take some ten million
MOST_ITEMS = 1 << 24  # in lists
MOST_SETTINGS, MOST_DIMENSIONS = 1 << 16, 4
ALIGNMENT = "general.alignment"
STRING, LIST, BOOL, FLOAT = 8, 9, 7, 6
NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", BOOL: "?", 10: "u8", 11: "i8", 12: "f8"}
SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # bytes that the header has for one of a single axis without a name


class TensorEntry(NamedTuple):
    """Where a tensor lies. `kind` is ggml's number for its type."""

    kind: int
    # the last axis side by side, as torch has it; without leading ones, which ggml itself leaves out
    shape: tuple[int, ...]
    start: int  # byte of the file
    nbytes: int


class Header(NamedTuple):
    """What a file says before its tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


def read_header(path: Path, sizes: Mapping[int, tuple[int, int]]) -> Header:
    """The header of a file; `sizes` are ggml's types: (numbers of a block, its bytes).

    Raises OSError, and ValueError for whatever is not as the format has it.
    """
    with path.open("rb") as file:
        nbytes = file.seek(0, 2)
        if nbytes < 24:
            raise ValueError(f"it has only {nbytes} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _header(_Cursor(content, nbytes), nbytes, sizes)


def _header(cursor: _Cursor, nbytes: int, sizes: Mapping[int, tuple[int, int]]) -> Header:
    magic, version = cursor.number("u4"), cursor.number("u4")
    if magic != MAGIC:
        raise ValueError("it does not begin with GGUF")
    if version not in VERSIONS:
        swapped = version & 0xFFFF == 0
        raise ValueError("it is of a big-endian machine" if swapped else f"its version is {version}, not 2 or 3")
    n_tensors, n_settings = cursor.number("u8"), cursor.number("u8")
    if n_tensors * SMALLEST_TENSOR > nbytes or n_settings > MOST_SETTINGS:
        raise ValueError(f"it counts {n_tensors} tensors and {n_settings} settings in {nbytes} bytes")
    metadata: dict[str, Any] = {}
    for _ in range(n_settings):
        key = cursor.string()
        if key in metadata:
            raise ValueError(f"it says {key!r} twice")
        metadata[key] = cursor.value(cursor.number("u4"))
    entries: dict[str, TensorEntry] = {}
    for _ in range(n_tensors):
        name, entry = _entry(cursor, sizes)
        if name in entries:
            raise ValueError(f"it holds the tensor {name!r} twice")
        entries[name] = entry
    alignment = metadata.get(ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"{ALIGNMENT} = {alignment!r} is no power of two")
    begin = -(-cursor.at // alignment) * alignment
    tensors = {name: entry._replace(start=begin + entry.start) for name, entry in entries.items()}
    ordered = sorted(tensors, key=lambda name: tensors[name].start)
    for name in ordered:
        if tensors[name].start + tensors[name].nbytes > nbytes:
            raise ValueError(f"the tensor {name!r} ends beyond the file's {nbytes} bytes")
    behind, end = "the header", begin
    for name in ordered:
        start, expected = tensors[name].start, end + -end % alignment
        if start < end:
            raise ValueError(f"{behind} and the tensor {name!r} lie over each other")
        if start != expected:
            raise ValueError(f"the tensor {name!r} begins at byte {start:,} and not at {expected:,}, behind {behind}")
        behind, end = f"the tensor {name!r}", start + tensors[name].nbytes
    return Header(metadata, tensors)


def _entry(cursor: _Cursor, sizes: Mapping[int, tuple[int, int]]) -> tuple[str, TensorEntry]:
    """A tensor's name and place, its start counted from where tensors begin."""
    name, n = cursor.string(), cursor.number("u4")
    if not 1 <= n <= MOST_DIMENSIONS:
        raise ValueError(f"the tensor {name!r} has {n} dimensions")
    shape = tuple(cursor.number("u8") for _ in range(n))[::-1]
    kind, start = cursor.number("u4"), cursor.number("u8")
    if kind not in sizes:
        raise ValueError(f"the tensor {name!r} is of type {kind}, which is unknown")
    block, block_nbytes = sizes[kind]
    if min(shape) < 1 or shape[-1] % block:
        raise ValueError(f"the tensor {name!r} is {list(shape)}, which its type cannot be")
    first = next((i for i, length in enumerate(shape) if length > 1), n - 1)
    return name, TensorEntry(kind, shape[first:], start, math.prod(shape) // block * block_nbytes)


class _Cursor:
    """A place in a file that moves on as it is read."""

    def __init__(self, content: mmap.mmap, nbytes: int) -> None:
        self._content, self._end = content, min(nbytes, LARGEST_HEADER)
        self.at, self._n_items = 0, 0

    def bytes(self, n: int) -> bytes:
        """The next n bytes. Raises ValueError where there are fewer."""
        if n > self._end - self.at:
            raise ValueError(f"{n} bytes are to follow byte {self.at}, where {self._end - self.at} are left")
        self.at += n
        return self._content[self.at - n : self.at]

    def number(self, kind: str) -> Any:
        """A number by numpy's name of its type."""
        return np.frombuffer(self.bytes(int(kind[1])), f"<{kind}")[0].item()

    def string(self) -> str:
        """A length and so many bytes of UTF-8."""
        (n,) = struct.unpack("<Q", self.bytes(8))
        return self.bytes(n).decode("utf-8")

    def value(self, kind: int) -> Any:
        """A number, a word, a truth or a list of them."""
        if kind == STRING:
            return self.string()
        if kind == FLOAT:  # a decimal that was rounded to 32 bits: the shortest that is, not all digits of the rounding
            return float(str(np.frombuffer(self.bytes(4), "<f4")[0]))
        if kind != LIST:
            return self._numbers(kind, 1)[0]
        inner, n = self.number("u4"), self.number("u8")
        self._n_items += n
        if self._n_items > MOST_ITEMS:
            raise ValueError(f"a list counts {n} items")
        if inner == STRING:
            return [self.string() for _ in range(n)]
        return self._numbers(inner, n)

    def _numbers(self, kind: int, n: int) -> list[Any]:
        if kind not in NUMBERS:
            raise ValueError(f"a value is of type {kind}, which is not read here")
        found = np.frombuffer(self.bytes(n * np.dtype(NUMBERS[kind]).itemsize), f"<{NUMBERS[kind]}")
        return (found.view("u1") != 0).tolist() if kind == BOOL else found.tolist()
