"""Files and directories that are there whole or not at all, whenever the process or the machine stops."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

from anyformer.disk.lock import hold
from anyformer.errors import RunFailed, UsageError

ASIDE = ".tmp-"  # what begins so is unfinished or on its way out: nobody reads it, and the next writer removes it
_DAY_SECONDS = 86_400.0


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """An empty directory beside `target` to fill; when the block ends it is synced and takes that name.

    `target` must not exist, or be empty. If anything fails nothing is left behind; what killed processes left of the same
    directory is removed, what living ones are filling is not. Raises OSError.
    """
    create_directories(target.parent)
    with _made(target, os.mkdir, put_in_place) as aside:
        yield aside


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """An empty file beside `target` to fill, likewise; what stands at `target` is replaced."""
    with _made(target, partial(write_file, content=b""), _moved) as aside:
        yield aside


@contextmanager
def _made(target: Path, begin: Callable[[Path], None], finish: Callable[[Path, Path], None]) -> Iterator[Path]:
    remove_unfinished(target)
    aside = _aside(target)
    begin(aside)
    held = hold(aside)
    try:
        yield aside
        finish(aside, target)
    except BaseException:
        _delete(aside, ignore_errors=True)
        raise
    finally:
        if held is not None:
            os.close(held)


def _aside(target: Path) -> Path:
    return target.parent / f"{ASIDE}{os.getpid()}-{target.name}"


def _moved(aside: Path, target: Path) -> None:
    sync(aside)
    os.rename(aside, target)
    sync(target.parent)


def _delete(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a directory with all that is in it, or a file."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors)
        return
    with suppress(OSError) if ignore_errors else nullcontext():
        os.unlink(path)


def put_in_place(aside: Path, target: Path) -> None:
    """Give a directory that is filled its name, when the disk holds all that is in it. Raises OSError."""
    mask = os.umask(0o022)  # only setting it says what it was
    os.umask(mask)
    readable = 0o666 & ~mask
    for directory, _, names in os.walk(aside, topdown=False):
        for name in sorted(names):
            os.chmod(Path(directory, name), readable)  # safetensors writes for the owner alone
            sync(Path(directory, name))
        sync(Path(directory))
    os.rename(aside, target)
    sync(target.parent)


def write_file(path: Path, content: bytes) -> None:
    """Write a new file in a directory that is itself not in place yet. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with naming(path):
            write_all(descriptor, content)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Give a file new content; whoever reads it sees the old or the new one, whole. Raises OSError."""
    aside = _aside(path)
    try:
        with suppress(FileNotFoundError):
            os.unlink(aside)
        write_file(aside, content)
        _moved(aside, path)
    except BaseException as error:
        _delete(aside, ignore_errors=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # nobody knows the file aside
        raise


def refuse_place(option: str, path: Path) -> None:
    """Raise UsageError where a file that a user has named by an option would lie in a folder that is not there."""
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first, or name another")


def write_named(path: Path, content: bytes, what: str = "") -> None:
    """`replace_file` of a file that a user has named, `what` says for what ("the page "). Raises RunFailed; a former one is then
    still there."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise RunFailed(f"could not write {what}{path}: {error.strerror or error}; choose another place") from None


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte: a nearly full disk takes a part, and only the next call says why. Raises OSError."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an OSError of the block name the file: one of a call on a descriptor does not know it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def remove_directory(path: Path) -> None:
    """Take a directory out of sight at once, then delete it. Raises OSError."""
    aside = path.parent / f"{ASIDE}{os.getpid()}-old-{path.name}"
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(path, aside)
    sync(path.parent)  # or a power cut could bring it back with files missing
    shutil.rmtree(aside)


def remove_unfinished(target: Path) -> None:
    """Delete what processes killed while they made this directory or file have left beside it: nobody holds it any more."""
    for aside in sorted(target.parent.glob(f"{ASIDE}*")):
        if re.fullmatch(rf"\d+-{re.escape(target.name)}", aside.name.removeprefix(ASIDE)):
            _reclaim(aside)


def remove_abandoned(directory: Path) -> None:
    """Delete what processes killed a day ago or longer were filling in this directory, whatever it was to be."""
    for aside in sorted(directory.glob(f"{ASIDE}*")):
        with suppress(OSError):
            if time.time() - aside.stat().st_mtime > _DAY_SECONDS:
                _reclaim(aside)


def remove_leftovers(directory: Path) -> None:
    """Delete what a killed process has left unfinished; only the owner of `directory` may do so. Raises OSError."""
    for path in sorted(directory.glob(f"{ASIDE}*")):
        _delete(path)


def create_directories(path: Path) -> None:
    """Make a directory and those above it, each synced into the one it is in. Raises OSError."""
    if not path.is_dir():
        create_directories(path.parent)
        with suppress(FileExistsError):
            os.mkdir(path)
        sync(path.parent)


def sync(path: Path) -> None:
    """Have the disk hold what was written to a file, or the names in a directory. Raises OSError."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no directories
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; they order a rename behind the writes by themselves.
        if not (error.errno in (errno.EINVAL, errno.ENOTSUP) and path.is_dir()):
            raise
    finally:
        os.close(descriptor)


def _reclaim(aside: Path) -> None:
    """Delete a directory or a file unless somebody holds it."""
    held = hold(aside)
    if held is not None:
        try:
            _delete(aside)
        finally:
            os.close(held)
