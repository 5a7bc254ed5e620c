"""Ways to compute attention: a kernel is one file and one name in KERNELS. An option it lacks is refused, never dropped.

Who names none has the first of IN_ORDER that can, or what `fastest.py` takes pass by pass.
"""

from __future__ import annotations

from typing import Protocol

from anyformer.errors import KernelError, among
from anyformer.kernels.blocked import Blocked
from anyformer.kernels.eager import Eager
from anyformer.kernels.fastest import Fastest, FastestOnGPU
from anyformer.kernels.flex import Flex
from anyformer.kernels.rows import Rows
from anyformer.kernels.sdpa import SDPA
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.context import Kernel


class NamedKernel(Kernel, Protocol):
    """A kernel that whoever builds a model may ask for."""

    def refuses(self, spec: AttentionSpec) -> str | None:
        """Why it cannot compute this attention, or None."""
        ...


BLOCKED, FLEX = Blocked(), Flex()
IN_ORDER: tuple[NamedKernel, ...] = (BLOCKED, SDPA(), Eager())  # fastest first; eager, the oracle, takes everything
KERNELS: dict[str, NamedKernel] = {kernel.name: kernel for kernel in (*IN_ORDER, Rows(), FLEX)}


def choose(name: str | None, spec: AttentionSpec, device: str = "cpu") -> Kernel:
    """The kernel of that name, or without one the fastest that takes this attention on that kind of device. Raises KernelError.

    Where hidden parts of a mask may be worth leaving out, each pass decides, by its length and its mask.
    """
    if name is None:
        able = [kernel for kernel in IN_ORDER if kernel.refuses(spec) is None]
        rest = next(kernel for kernel in able if kernel is not BLOCKED)
        if device == "cuda":
            return FastestOnGPU(FLEX, rest) if FLEX.refuses(spec) is None else rest
        return Fastest(BLOCKED if BLOCKED in able else None, rest) if device == "cpu" else rest
    if name not in KERNELS:
        raise KernelError(f"there is no kernel {name!r}{among(name, KERNELS)}")
    reason = KERNELS[name].refuses(spec)
    if reason is not None:
        able = [repr(other) for other, kernel in KERNELS.items() if kernel.refuses(spec) is None]
        raise KernelError(f"{reason}; use kernel={' or '.join(able)}")
    return KERNELS[name]
