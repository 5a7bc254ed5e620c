"""Where documents come from: files, folders and the standard library's own sources."""

from __future__ import annotations

import gzip
import json
import os
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.errors import TextError

SUFFIXES = (".txt", ".md", ".py", ".jsonl")

# Installed packages and tests are not the library itself, and differ from machine to machine.
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


class Document(NamedTuple):
    """One text and its name: a path relative to the corpus, with a line number for a line of .jsonl."""

    name: str
    text: str


def file_documents(path: Path, name: str) -> Iterator[Document]:
    """The documents of one file, whatever its suffix; one a line if it is .jsonl, unpacked first if it is .gz."""
    text = read_text(path)
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        yield from _json_documents(text, str(path), name)
    else:
        yield Document(name, text)


def folder_documents(folder: Path) -> Iterator[Document]:
    """All documents below `folder`, by name; files of other suffixes and hidden files and folders are passed over.

    Raises TextError where no file has a known suffix.
    """
    paths = [path for path in _files(folder, set()) if path.name.removesuffix(".gz").endswith(SUFFIXES)]
    if not paths:
        raise TextError(f"no documents in {folder}: no file ends in {', '.join(SUFFIXES)} (or one of them and .gz)")
    for path in paths:
        yield from file_documents(path, path.relative_to(folder).as_posix())


def stdlib_documents() -> Iterator[Document]:
    """The .py files of the running Python's standard library, by name; tests and undecodable files left out."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in _files(library, _NOT_THE_LIBRARY):
        if path.suffix == ".py":
            try:
                yield Document(path.relative_to(library).as_posix(), read_text(path))
            except TextError:
                continue


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, line ends as they are; unpacked if its name ends in .gz.

    Raises TextError, with the byte where it goes wrong, for what is not UTF-8 or holds a NUL.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TextError(f"{path} is not a whole gzip file ({error})") from None
    except OSError as error:
        raise TextError(f"cannot read {path}: {error.strerror}") from None
    nul = content.find(0)
    if nul >= 0:
        raise TextError(f"{path} is binary, not text: byte 0 at offset {nul}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path} is not UTF-8 text: byte 0x{content[error.start]:02x} at offset {error.start} ({error.reason}); "
            f"convert it to UTF-8 or remove it"
        ) from None


def _files(folder: Path, left_out: set[str]) -> list[Path]:
    found: list[Path] = []
    for directory, below, names in os.walk(folder):
        below[:] = [name for name in below if name not in left_out and not name.startswith(".")]
        found += [Path(directory, name) for name in names if not name.startswith(".")]
    return sorted((path for path in found if path.is_file()), key=lambda path: path.relative_to(folder).as_posix())


def json_lines(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """(number of the line, from 1; what it says) of JSON Lines, blank lines left out. Raises TextError."""
    # Only "\n" ends a line of JSON Lines: U+2028, which str.splitlines cuts at, is legal inside a JSON string.
    for line, written in enumerate(text.split("\n"), start=1):
        if not written.strip():
            continue
        try:
            entry = json.loads(written)
        except ValueError as error:
            raise wrong(where, line, f"not JSON ({error})") from None
        yield line, entry


def refuse_surrogates(text: str, where: str, line: int) -> None:
    """Raise TextError for half a character, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise wrong(where, line, f"half a character (surrogate U+{ord(text[error.start]):04X}) in its text") from None


def wrong(where: str, line: int, reason: str) -> TextError:
    """The refusal of a line of a file."""
    return TextError(f"{where}, line {line}: {reason}")


def _json_documents(text: str, where: str, name: str) -> Iterator[Document]:
    for line, entry in json_lines(text, where):
        content = entry.get("text") if isinstance(entry, dict) else None
        if not isinstance(content, str):
            raise wrong(where, line, 'not an object with a string "text"')
        refuse_surrogates(content, where, line)
        yield Document(f"{name}:{line}", content)
