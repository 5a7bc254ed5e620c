"""A directory has one owner at a time, by a lock that the operating system releases when its holder dies."""

from __future__ import annotations

import os
import time
from pathlib import Path

from anyformer.errors import UsageError

_PATIENCE_SECONDS = 0.5  # `is_held` of another process holds the lock for a moment


class Lock:
    """The lock on a file, which says who holds it. Raises UsageError, naming the holder, where another process does."""

    def __init__(self, path: Path, owned: Path) -> None:
        """Take the lock. `owned` is the directory to name in the error."""
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _taken(self._descriptor):
            if time.monotonic() > deadline:
                holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                self.release()
                raise UsageError(
                    f"output directory in use: {owned} belongs to the running process {holder}; "
                    f"wait for it, stop it, or name another directory"
                )
            time.sleep(0.02)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        # A forked child shares the lock: one that outlived its parent would keep it.
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        """Close this process's hold, at most once; the lock is free when every holder has."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock on a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _taken(descriptor, shared=True)
    finally:
        os.close(descriptor)


def hold(directory: Path, *, wait: bool = False) -> int | None:
    """The lock on a directory, or a file, itself, for `os.close` to release; None where there is none to be had.

    It is another's, who is waited for with `wait`, or the directory is gone, or the file system or the operating system knows no
    locks.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # Windows opens no directories
    try:
        if _taken(descriptor, wait=wait) and os.path.samestat(os.fstat(descriptor), os.stat(directory)):
            return descriptor
    except (OSError, ImportError):
        pass
    except BaseException:  # Ctrl-C, while another has it
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _taken(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
