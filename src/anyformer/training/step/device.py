"""Where a run computes, in which numbers, and in whose memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import get_args

import torch

from anyformer.capacity import usable
from anyformer.errors import RunFailed, UsageError, among, did_you_mean, out_of_memory
from anyformer.recipe import Precision

PRECISIONS = get_args(Precision)
KINDS = ("cpu", "cuda", "mps", "xpu")
# Of glibc's malloc.h: M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD.
_HEAP = ((-4, 0), (-1, -1), (-2, 64 << 20))


def best_device() -> torch.device:
    """The best that this machine has."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("xpu" if torch.xpu.is_available() else "cpu")


def choose_device(name: str | None = None) -> torch.device:
    """The device of that name, such as "cuda:1"; None: the best. Raises UsageError for one that isn't there."""
    if name is None:
        return best_device()
    kind = name.split(":")[0]
    if kind not in KINDS:
        raise UsageError(
            f"there is no device {name!r}{did_you_mean(kind, KINDS)}; this machine's best is {best_device().type!r}"
        )
    return usable(name)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context in which products are computed in bf16, or one that changes nothing. Raises UsageError for another name."""
    if precision not in PRECISIONS:
        raise UsageError(f"there is no precision {precision!r}{among(precision, PRECISIONS)}")
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def compute_dtype(precision: Precision) -> torch.dtype:
    """The type that matrix products are computed in."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


def keep_heap() -> bool:
    """Tell glibc to take all memory from the heap and never to give it back; return whether this is glibc.

    A large tensor is otherwise new pages each time, dearer than the work on them; resident memory stays at its peak.
    """
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        return False
    taken = [bool(libc.mallopt(name, value)) for name, value in _HEAP]
    return all(taken)


@contextmanager
def memory_told() -> Iterator[None]:
    """Raise RunFailed where memory runs out, which says what takes less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError) and not out_of_memory(error):
            raise
        raise RunFailed(
            "out of memory; take fewer tokens at once (--micro-tokens), make layers again instead of keeping what they make "
            "(--recompute full), or take a smaller batch or model"
        ) from error
