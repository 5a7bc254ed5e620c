"""Where autocast must not reach: what chooses, and what has cast its inputs itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """A context in which operations on the device of x keep the dtypes that they are given."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast would cast the operands of products with x now; None where it would not."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if not x.is_meta and torch.is_autocast_enabled(kind) else None
