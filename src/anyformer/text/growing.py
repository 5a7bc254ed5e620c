"""Files that grow for hours: what a killed process had written, and the disk held, is gone on with."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyformer.disk.atomic import ASIDE, replace_file
from anyformer.disk.lock import hold
from anyformer.errors import TextError

INDEX = "meta.json"  # of each file its bytes and their digest
SETTLED = 16 << 20  # bytes of tokens after which what is written is made sure of


@contextmanager
def growing(target: Path) -> Iterator[Path]:
    """The directory beside `target` to fill, and to put in its place: one process at a time has it, the others wait.

    A full disk or another text takes it away; a kill or Ctrl-C leaves it for a day (`disk.atomic.remove_abandoned`), for who
    comes next.
    Raises OSError.
    """
    aside = target.parent / f"{ASIDE}growing-{target.name}"
    held = None
    while held is None:
        aside.mkdir(exist_ok=True)
        held = hold(aside, wait=True)
        if held is None and aside.exists():  # there are no locks here: nobody can be told to wait
            aside = target.parent / f"{ASIDE}{os.getpid()}-{target.name}"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            break
    try:
        yield aside
        shutil.rmtree(aside, ignore_errors=True)  # where another process had put its own in place
    except (OSError, TextError):
        shutil.rmtree(aside, ignore_errors=True)
        raise
    finally:
        if held is not None:
            os.close(held)


class Grown:
    """The tokens of a corpus and where its documents begin, as far as they are written. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        """Open what `directory` has for certain, which is nothing where a byte of it is another."""
        self.directory = directory
        try:
            known = json.loads((directory / INDEX).read_text(encoding="utf-8"))
            self.parts = int(known["parts"])  # how many parts of texts are in
            self.tokens, self.offsets = (_Appended(directory / f"{name}.bin", **known[name]) for name in _GROWING)
        except (OSError, ValueError, KeyError, TypeError):
            self.parts = 0
            self.tokens, self.offsets = (_Appended(directory / f"{name}.bin") for name in _GROWING)
        self._settled = self.tokens.nbytes

    def __enter__(self) -> Grown:
        return self

    def __exit__(self, *raised: object) -> None:
        self.tokens.close()
        self.offsets.close()

    def added(self) -> None:
        """Count one more part, and from time to time have the disk hold all of them."""
        self.parts += 1
        if self.tokens.nbytes - self._settled >= SETTLED:
            self._settled = self.tokens.nbytes
            self.note({"parts": self.parts, **{name: getattr(self, name).measure() for name in _GROWING}})

    def note(self, content: dict[str, Any]) -> None:
        """Have the disk hold all of it, and the index say this of it."""
        self.tokens.sync()
        self.offsets.sync()
        replace_file(self.directory / INDEX, (json.dumps(content, indent=2) + "\n").encode())


_GROWING = ("tokens", "offsets")


class _Appended:
    """A file that is only added to, and the digest of what it holds."""

    def __init__(self, path: Path, nbytes: int = 0, sha256: str = "") -> None:
        """Open the file with its first bytes alone. Raises ValueError where they are not those that were there."""
        self._file = open(path, "a+b")  # noqa: SIM115
        self._digest, self.nbytes = hashlib.sha256(), nbytes
        self._file.seek(0)
        left = nbytes
        while left and (block := self._file.read(min(left, 1 << 20))):
            self._digest.update(block)
            left -= len(block)
        if nbytes and (left or self._digest.hexdigest() != sha256):
            self._file.close()
            raise ValueError(f"{path} is not what was written")
        self._file.truncate(nbytes)

    def add(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self.nbytes += len(content)

    def sync(self) -> None:
        """Have the disk hold it."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def measure(self) -> dict[str, Any]:
        """As `measure` of the file."""
        return {"nbytes": self.nbytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        self._file.close()


def measure(path: Path) -> dict[str, Any]:
    """The bytes of a file, and their digest."""
    with open(path, "rb") as file:
        return {"nbytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
