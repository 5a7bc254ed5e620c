"""Where the bytes of a text lie: a file of this machine, or one that fsspec reaches (`s3://`, `gs://`, `hf://`, `memory://`).

Nothing is fetched that is not named: a path with `://` is asking for it. What ends in .gz or .zst is unpacked as it is read.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from anyformer.errors import TextError, first_line

BLOCK = 1 << 20  # bytes that are read at once
PACKED = (".gz", ".zst")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


class FileTree(Protocol):
    """A folder, with the files in it by their relative names, with slashes."""

    def names(self) -> list[str]:
        """All files below it, sorted; hidden ones, and those in hidden folders, are passed over. Raises TextError."""
        ...

    def spelled(self, name: str) -> str:
        """How messages name a file."""
        ...

    def open(self, name: str) -> BinaryIO:
        """The bytes of a file as they lie there. Raises OSError, or TextError of what is elsewhere."""
        ...


@dataclass(frozen=True)
class Folder:
    """A folder of this machine."""

    path: Path
    left_out: frozenset[str] = frozenset()  # folders

    def names(self) -> list[str]:
        found: list[str] = []
        for directory, below, names in os.walk(self.path):
            below[:] = [name for name in below if name not in self.left_out and not name.startswith(".")]
            before = Path(directory).relative_to(self.path).as_posix()
            prefix = "" if before == "." else f"{before}/"
            found += [
                prefix + name
                for name in names
                if not name.startswith(".") and os.path.isfile(os.path.join(directory, name))  # no dangling link
            ]
        return sorted(found)

    def spelled(self, name: str) -> str:
        return str(self.path / name)

    def open(self, name: str) -> BinaryIO:
        return open(self.path / name, "rb")


@dataclass(frozen=True)
class Elsewhere:
    """A folder that fsspec reaches, by its address."""

    url: str

    def names(self) -> list[str]:
        files, root = _reached(self.url)
        with _failing(self.url):
            found = [str(each).removeprefix(root.rstrip("/")).lstrip("/") for each in files.find(root)]
        return sorted(name for name in found if not any(part.startswith(".") for part in name.split("/")))

    def spelled(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def open(self, name: str) -> BinaryIO:
        files, root = _reached(self.url)
        with _failing(self.spelled(name)):
            return files.open(f"{root.rstrip('/')}/{name}", "rb")


def is_elsewhere(name: str | Path) -> bool:
    """Whether a name is an address, as `s3://bucket/texts`."""
    return isinstance(name, str) and _SCHEME.match(name) is not None


def kind_elsewhere(url: str) -> str | None:
    """What is at an address: "file", "directory", or None for nothing. Raises TextError where it cannot be reached."""
    files, root = _reached(url)
    with _failing(url):
        return "file" if files.isfile(root) else "directory" if files.isdir(root) else None


@contextmanager
def unpacked(place: FileTree, name: str) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if its name ends in .gz or .zst. Raises TextError for what cannot be read."""
    where = place.spelled(name)
    try:
        with _failing(where), place.open(name) as file:
            if name.lower().endswith(".gz"):
                yield cast(BinaryIO, gzip.GzipFile(fileobj=file))
            elif name.lower().endswith(".zst"):
                yield cast(BinaryIO, io.BufferedReader(_Zst(file, where), BLOCK))
            else:
                yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TextError(f"{where} is not a whole gzip file ({error})") from None
    except OSError as error:
        raise TextError(f"cannot read {where}: {error.strerror or error}") from None


def refuse_surrogates(text: str) -> None:
    """Raise TextError for half a character, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code, at = ord(text[error.start]), f"at character {error.start}"
        if 0xDC80 <= code <= 0xDCFF:  # how Python writes a byte of the command line that is no UTF-8
            said = f"text that is not UTF-8: byte 0x{code - 0xDC00:02x} {at}"
            raise TextError(f"{said}; convert it or remove it") from None
        raise TextError(f"half a character (surrogate U+{code:04X}) {at}; remove it") from None


def decoded(file: BinaryIO, where: str) -> Iterator[str]:
    """UTF-8 text in pieces, line ends as they are, without a byte order mark before it.

    Raises TextError, with the byte where it goes wrong, for what is not UTF-8 or holds a NUL.
    """
    decoder, begin, read, block, begun = codecs.getincrementaldecoder("utf-8")(), 0, 0, b"-", False
    try:
        while block:
            block = file.read(BLOCK)
            nul = block.find(0)
            if nul >= 0:
                raise TextError(f"{where} is binary, not text: byte 0 at offset {read + nul}")
            begin = read - len(decoder.getstate()[0])  # where the block before ended in half a character
            read += len(block)
            text = decoder.decode(block, final=not block)
            yield text if begun else text.removeprefix("\ufeff")
            begun = begun or bool(text)
    except UnicodeDecodeError as error:
        raise TextError(
            f"{where} is not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {begin + error.start} "
            f"({error.reason}); convert it to UTF-8 or remove it"
        ) from None


def needed(module: str, package: str, where: str, what: str) -> Any:
    """A module that reads one kind of file. Raises TextError, naming the package to install, where it is not there."""
    try:
        return import_module(module)
    except ImportError:
        raise TextError(f"{where}: {what} needs the package {package}; pip install {package}") from None


class _Zst(io.RawIOBase):
    """The content of a .zst file: frames, one after the other, each of them whole."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._zstandard = needed("zstandard", "zstandard", where, "unpacking .zst")
        self._file, self._where, self._left = file, where, b""
        self._frame, self._inside = self._zstandard.ZstdDecompressor().decompressobj(), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and self._more():
            pass
        n = min(len(buffer), len(self._left))
        buffer[:n], self._left = self._left[:n], self._left[n:]
        return n

    def _more(self) -> bool:
        given = (self._frame.unused_data if self._frame.eof else b"") or self._file.read(BLOCK // 8)
        if not given:
            if self._inside:
                raise TextError(f"{self._where} is not a whole zstd file (its last frame does not end)")
            return False
        if self._frame.eof:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            self._left = self._frame.decompress(given)
            self._inside = not self._frame.eof
        except self._zstandard.ZstdError as error:
            raise TextError(f"{self._where} is not a whole zstd file ({error})") from None
        return True


def _reached(url: str) -> tuple[Any, str]:
    """(the file system of an address, the path there)."""
    import fsspec

    scheme = url.partition("://")[0]
    try:
        return fsspec.url_to_fs(url)
    except ImportError as error:
        raise TextError(f"{url}: {scheme}:// needs a package of its own: {first_line(error)}") from None
    except ValueError:
        raise TextError(f"{url}: no file system is known as {scheme}://; s3, gs, hf, https and memory are") from None
    except Exception as error:
        raise TextError(f"cannot reach {url}: {first_line(error)}") from None


@contextmanager
def _failing(where: str) -> Iterator[None]:
    """Have what a client of a file system raises, whatever its class, be one line that names the address."""
    try:
        yield
    except (OSError, EOFError, TextError, zlib.error, UnicodeError):
        raise
    except Exception as error:
        raise TextError(f"cannot read {where}: {first_line(error)}") from None
