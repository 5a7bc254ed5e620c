"""Keeps freed memory in the process: on glibc a large tensor is otherwise new pages, dearer than the work on them."""

from __future__ import annotations

import ctypes
import sys

# The numbers of glibc's malloc.h: M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD.
_SETTINGS = ((-4, 0), (-1, -1), (-2, 64 << 20))


def keep_heap() -> bool:
    """Tell glibc to take all memory from the heap and never to give it back; return whether this is glibc.

    Resident memory then stays at its peak until `release_heap`.
    """
    libc = _glibc()
    if libc is None:
        return False
    taken = [bool(libc.mallopt(name, value)) for name, value in _SETTINGS]
    return all(taken)


def release_heap() -> None:
    """Give free memory back to the machine, once: for a long-lived process after a run."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
