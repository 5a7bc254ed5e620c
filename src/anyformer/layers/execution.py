"""Where operations run now: on real numbers, in a graph, under autocast, on which device; and what may be asked there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def numberless(fact: Tensor) -> bool:
    """Whether it is known of a tensor only what shape it has."""
    return isinstance(fact, FakeTensor) or fact.is_meta


def as_given(x: Tensor) -> AbstractContextManager[object]:
    """A context in which operations on the device of x keep the dtypes that they are given."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def exporting() -> bool:
    """Whether a graph is exported: PyTorch 2.11's compiler says so of one that it compiles, too."""
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


_RECORDING = ContextVar("recording", default=False)


@contextmanager
def recording() -> Iterator[None]:
    """What is asked for here, a CUDA graph will do again without Python."""
    before = _RECORDING.set(True)
    try:
        yield
    finally:
        _RECORDING.reset(before)


def recorded() -> bool:
    """Whether what is asked for now goes into a graph, a compiler's or one of CUDA's: then no number is read from the device."""
    return torch.compiler.is_compiling() or _RECORDING.get()


_CONSTANTS = dict[tuple[Any, ...], Tensor]()  # for good: CUDA graphs read what lies here


def constant(numbers: Sequence[float], beside: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The numbers [n] on the device of a tensor, which holds them from then on: a GPU waits for what comes from the CPU."""
    dtype, device = dtype or torch.get_default_dtype(), beside.device
    if torch.compiler.is_compiling() or numberless(beside):
        return torch.tensor(numbers, dtype=dtype, device=device)
    key = (tuple(numbers), dtype, device)
    if key not in _CONSTANTS:
        with torch.inference_mode(False):
            _CONSTANTS[key] = torch.tensor(numbers, dtype=dtype, device=device)
    return _CONSTANTS[key]


def exact_dtype(x: Tensor) -> torch.dtype:
    """The dtype of what must not be rounded as x may be: float32, or float64 as x is."""
    return torch.promote_types(x.dtype, torch.float32)


def exact(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(exact_dtype(x))


def sent_to(x: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, which nobody waits for: a GPU takes what is pinned when it comes to it."""
    pinned = x.pin_memory() if x.is_cpu and device.type == "cuda" and not numberless(x) else x
    return pinned.to(device, non_blocking=True)


def at_every_length(*conditions: Any) -> bool:
    """Whether all of them hold; where a graph is exported, at every length that it is for, and not for its example alone."""
    if not exporting():
        return all(conditions)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(condition) for condition in conditions)


def transformed() -> bool:
    """Whether torch.func transforms this pass: it sees into no operator of ours, and would lose what depends on one."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which products with x are made now: its own, or autocast's."""
    return autocast_dtype(x) or x.dtype


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype to which autocast would cast the operands of products with x now; None where it would not."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if not x.is_meta and torch.is_autocast_enabled(kind) else None
