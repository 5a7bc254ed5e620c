"""Where documents come from: files, folders and the standard library's own sources, read piece by piece."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any, NamedTuple, Protocol

from anyformer.disk.foreign import keys_once
from anyformer.errors import TextError, cut, did_you_mean, errors_of
from anyformer.text.places import BLOCK, PACKED, FileTree, Folder, decoded, refuse_surrogates, unpacked
from anyformer.text.tables import READERS

SUFFIXES = (".txt", ".md", ".py", ".jsonl", *READERS)
SHORT = 300  # characters of a value in a message
LONGEST_LINE = 1 << 24  # characters of a line of .jsonl, which is read whole

# Installed packages and tests are not the library itself, and differ from machine to machine.
_NOT_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
_CACHE = "cache-"  # how the names of files begin in which Hugging Face's datasets keeps what it computed


class Document(NamedTuple):
    """One text and its name: a path relative to the corpus, with the number of its line, row or member in a file of several."""

    name: str
    text: str


class DocumentSource(Protocol):
    """Files, or what stands for them, by number; they can be read again and again."""

    def __len__(self) -> int: ...

    def name(self, number: int) -> str:
        """Of a file, relative to the corpus."""
        ...

    def pieces(self, number: int) -> Iterator[tuple[int, str]]:
        """(line, text), lines ascending: a document's line or row, from 1, or 0 for a whole file, and the next part of its text.

        Raises TextError for what cannot be read.
        """
        ...


@dataclass(frozen=True)
class HeldDocuments:
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
class TextFiles:
    """Files of a place: one document each, whatever the suffix; several where it is .jsonl, .parquet, .arrow or .tar."""

    place: FileTree
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, number: int) -> str:
        return self.names[number]

    def pieces(self, number: int) -> Iterator[tuple[int, str]]:
        name = self.names[number]
        where, kind = self.place.spelled(name), without_packing(name).lower()
        reader = next((reader for suffix, reader in READERS.items() if kind.endswith(suffix)), None)
        with unpacked(self.place, name) as file:
            if reader is not None:
                yield from reader(file, where)
            elif kind.endswith(".jsonl"):
                yield from _json_texts(lines(decoded(file, where), where), where)
            else:
                yield from ((0, text) for text in decoded(file, where))


def files_in(place: FileTree, where: str) -> TextFiles:
    """All files of a place with a known suffix, by name. Raises TextError where there are none.

    Of a Hugging Face dataset on disk these are its rows; of several in one folder, one has to be named.
    """
    found = place.names()
    if "dataset_dict.json" in found:
        raise TextError(f"{where} holds several datasets; name one of its folders, such as {where.rstrip('/')}/train")
    names = tuple(
        name
        for name in found
        if without_packing(name).lower().endswith(SUFFIXES) and not name.rpartition("/")[2].startswith(_CACHE)
    )
    if not names:
        raise TextError(
            f"no documents in {where}: no file ends in {', '.join(SUFFIXES)} (or one of them and .gz or .zst)"
        )
    return TextFiles(place, names)


def stdlib_files() -> TextFiles:
    """The .py files of the running Python's standard library, by name; tests left out."""
    library = Folder(Path(sysconfig.get_path("stdlib")), _NOT_THE_LIBRARY)
    return TextFiles(library, tuple(name for name in library.names() if name.endswith(".py")))


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(number of the line, from 1; what it says) of a file of JSON Lines, blank ones left out. Raises TextError."""
    with unpacked(Folder(path.parent), path.name) as file:
        yield from json_lines(lines(decoded(file, str(path)), str(path)), str(path))


def read_text(path: Path) -> str:
    """The whole text of a file, unpacked if its name ends in .gz or .zst. Raises TextError for what is no UTF-8 text."""
    with unpacked(Folder(path.parent), path.name) as file:
        return "".join(decoded(file, str(path)))


def suffix_of(path: Path) -> str:
    """How a file's name ends, however it is packed: ".jsonl" of a.JSONL.gz."""
    return Path(without_packing(path.name)).suffix.lower()


def without_packing(name: str) -> str:
    """The name of a file without .gz or .zst behind it."""
    return next((name[: -len(suffix)] for suffix in PACKED if name.lower().endswith(suffix)), name)


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
            entry = json.loads(one, object_pairs_hook=keys_once)
        except ValueError as error:
            raise wrong(where, line, f"not JSON ({error})") from None
        except RecursionError:
            raise wrong(where, line, "lists or objects inside each other, too deep to read") from None
        yield line, entry


def short(value: Any) -> str:
    """A value of a file, however long or deep, in the few characters that a message has room for."""
    written = Repr()
    written.maxstring = written.maxother = 60
    written.maxlist = 20
    return cut(written.repr(value), SHORT)


def wrong(where: str, line: int, reason: str) -> TextError:
    """The refusal of a line of a file."""
    return TextError(f"{where}, line {line}: {reason}")


def reading(where: str, line: int) -> AbstractContextManager[None]:
    """Within it what is wrong with a line of a file is said with both."""
    return errors_of(f"{where}, line {line}", TextError)


def lacks(name: str, entry: Iterable[str]) -> TextError:
    """The refusal of an object that has no field of a name."""
    return TextError(f"there is no {name!r} among {fields_of(entry)}{did_you_mean(name, entry)}")


def fields_of(entry: Iterable[str]) -> str:
    """The fields that an object has, as a message lists them."""
    return short(list(entry))[1:-1] or "nothing"


def _json_texts(written: Iterable[str], where: str) -> Iterator[tuple[int, str]]:
    for line, entry in json_lines(written, where):
        fields = entry if isinstance(entry, dict) else {}
        with reading(where, line):
            if not isinstance(text := fields.get("text"), str):
                has = f", it has {fields_of(fields)}" if fields else ""
                talks = {"messages", "prompt"} & fields.keys()
                asked = "; --objective sft learns the answers of conversations" if talks else ""
                raise TextError(f'not an object with a string "text"{has}{asked}')
            refuse_surrogates(text)
        yield line, text
