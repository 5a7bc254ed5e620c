"""What memory has room for: a model is refused by its sizes alone, before anything of it is allocated."""

from __future__ import annotations

import psutil
import torch

from anyformer.errors import UsageError, first_line

GIGABYTE = 10**9


def usable(device: torch.device | str) -> torch.device:
    """The device of that name, such as "cuda:1". Raises UsageError for one that cannot be used here."""
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device {str(device)!r} cannot be used here ({first_line(error)}); take another, such as cpu"
        ) from None


def free_nbytes(device: torch.device | str | None = None) -> int | None:
    """The bytes that can still be allocated on a device, by default the CPU; None where nobody says."""
    kind = usable(device or "cpu")
    if kind.type == "cuda":
        return torch.cuda.mem_get_info(kind)[0]
    if kind.type not in ("cpu", "mps"):  # what has its own memory, or none: "meta"
        return None
    return psutil.virtual_memory().available + psutil.swap_memory().free


def refuse_beyond_memory(
    needed: float, device: torch.device | str | None, what: str, remedy: str, *, share: float = 1.0
) -> None:
    """Raise UsageError, with a remedy, where `what` needs more bytes than a `share` of those that are free on a device."""
    free = free_nbytes(device)
    if free is not None and needed > share * free:
        sizes = f"{needed / GIGABYTE:,.1f} GB of memory and {free / GIGABYTE:,.1f} GB are free on {device or 'cpu'}"
        raise UsageError(f"{what} needs {sizes}; {remedy}")
