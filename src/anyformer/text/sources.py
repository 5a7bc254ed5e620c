"""Where documents come from: files, folders and the standard library's own sources, read piece by piece."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any, NamedTuple, Protocol

from anyformer.errors import TextError

SUFFIXES = (".txt", ".md", ".py", ".jsonl")
BLOCK = 1 << 20  # bytes that are read at once
LONGEST_LINE = 1 << 24  # characters of a line of .jsonl, which is read whole

# Installed packages and tests are not the library itself, and differ from machine to machine.
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


class Document(NamedTuple):
    """One text and its name: a path relative to the corpus, with a line number for a line of .jsonl."""

    name: str
    text: str


class Source(Protocol):
    """Files, or what stands for them, by number; they can be read again and again."""

    def __len__(self) -> int: ...

    def name(self, number: int) -> str:
        """Of a file, relative to the corpus."""
        ...

    def pieces(self, number: int) -> Iterator[tuple[int, str]]:
        """(line, text), lines ascending: a document's line, from 1, or 0 for a whole file, and the next part of its text.

        Raises TextError for what cannot be read.
        """
        ...


@dataclass(frozen=True)
class Held:
    """Documents in memory, each a file of its own."""

    documents: tuple[Document, ...]

    def __len__(self) -> int:
        return len(self.documents)

    def name(self, number: int) -> str:
        return self.documents[number].name

    def pieces(self, number: int) -> Iterator[tuple[int, str]]:
        text = self.documents[number].text
        return ((0, text[start : start + BLOCK]) for start in range(0, len(text), BLOCK))


@dataclass(frozen=True)
class Files:
    """Files of a folder: one document each, whatever the suffix; one a line if it is .jsonl, unpacked if it is .gz."""

    folder: Path
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, number: int) -> str:
        return self.names[number]

    def pieces(self, number: int) -> Iterator[tuple[int, str]]:
        path = self.folder / self.names[number]
        found = read_pieces(path)
        if path.name.removesuffix(".gz").endswith(".jsonl"):
            return _json_texts(lines(found, str(path)), str(path))
        return ((0, text) for text in found)


def folder_files(folder: Path) -> Files:
    """All files below `folder`, by name; those of other suffixes and hidden files and folders are passed over.

    Raises TextError where no file has a known suffix.
    """
    names = tuple(name for name in _names(folder, set()) if name.removesuffix(".gz").endswith(SUFFIXES))
    if not names:
        raise TextError(f"no documents in {folder}: no file ends in {', '.join(SUFFIXES)} (or one of them and .gz)")
    return Files(folder, names)


def stdlib_files() -> Files:
    """The .py files of the running Python's standard library, by name; tests left out."""
    library = Path(sysconfig.get_path("stdlib"))
    return Files(library, tuple(name for name in _names(library, _NOT_THE_LIBRARY) if name.endswith(".py")))


def read_text(path: Path) -> str:
    """The whole text of a file. Raises TextError as `read_pieces` does."""
    return "".join(read_pieces(path))


def read_pieces(path: Path) -> Iterator[str]:
    """The text of a UTF-8 file in pieces, line ends as they are; unpacked if its name ends in .gz.

    Raises TextError, with the byte where it goes wrong, for what is not UTF-8 or holds a NUL.
    """
    decoder, begin, read, block = codecs.getincrementaldecoder("utf-8")(), 0, 0, b"-"
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            while block:
                block = file.read(BLOCK)
                nul = block.find(0)
                if nul >= 0:
                    raise TextError(f"{path} is binary, not text: byte 0 at offset {read + nul}")
                begin = read - len(decoder.getstate()[0])  # where the block before ended in half a character
                read += len(block)
                yield decoder.decode(block, final=not block)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TextError(f"{path} is not a whole gzip file ({error})") from None
    except OSError as error:
        raise TextError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {begin + error.start} "
            f"({error.reason}); convert it to UTF-8 or remove it"
        ) from None


def _names(folder: Path, left_out: set[str]) -> list[str]:
    """Files below a folder, as relative paths with slashes, sorted."""
    found: list[str] = []
    for directory, below, names in os.walk(folder):
        below[:] = [name for name in below if name not in left_out and not name.startswith(".")]
        before = Path(directory).relative_to(folder).as_posix()
        prefix = "" if before == "." else f"{before}/"
        found += [
            prefix + name
            for name in names
            if not name.startswith(".") and os.path.isfile(os.path.join(directory, name))  # no dangling link
        ]
    return sorted(found)


def lines(pieces: Iterable[str], where: str) -> Iterator[str]:
    """The lines of a text without their ends. Raises TextError for one too long to be read whole."""
    # Only "\n" ends a line of JSON Lines: U+2028, which str.splitlines cuts at, is legal inside a JSON string.
    left, n = "", 0
    for piece in pieces:
        *whole, left = (left + piece).split("\n")
        yield from whole
        n += len(whole)
        if len(left) > LONGEST_LINE:
            remedy = "put a text so long into a file of its own, such as a .txt"
            raise wrong(where, n + 1, f"more than {LONGEST_LINE:,} characters; {remedy}")
    yield left


def json_lines(written: Iterable[str], where: str) -> Iterator[tuple[int, Any]]:
    """(number of the line, from 1; what it says) of lines of JSON, blank ones left out. Raises TextError."""
    for line, one in enumerate(written, start=1):
        if not one.strip():
            continue
        try:
            entry = json.loads(one)
        except ValueError as error:
            raise wrong(where, line, f"not JSON ({error})") from None
        except RecursionError:
            raise wrong(where, line, "lists or objects inside each other, too deep to read") from None
        yield line, entry


def refuse_surrogates(text: str, where: str, line: int) -> None:
    """Raise TextError for half a character, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise wrong(where, line, f"half a character (surrogate U+{ord(text[error.start]):04X}) in its text") from None


def short(value: Any) -> str:
    """A value of a file, however long or deep, in the few characters that a message has room for."""
    cut = Repr()
    cut.maxstring = cut.maxother = 60
    cut.maxlist = 20
    return cut.repr(value)


def wrong(where: str, line: int, reason: str) -> TextError:
    """The refusal of a line of a file."""
    return TextError(f"{where}, line {line}: {reason}")


def _json_texts(written: Iterable[str], where: str) -> Iterator[tuple[int, str]]:
    for line, entry in json_lines(written, where):
        content = entry.get("text") if isinstance(entry, dict) else None
        if not isinstance(content, str):
            raise wrong(where, line, 'not an object with a string "text"')
        refuse_surrogates(content, where, line)
        yield line, content
