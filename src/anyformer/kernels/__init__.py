"""Ways to compute attention: a kernel is one file and one line in KERNELS. An option it lacks is refused, never dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from anyformer.errors import KernelError, did_you_mean
from anyformer.kernels.eager import Eager
from anyformer.kernels.sdpa import SDPA
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.tokens import Kernel


class Candidate(Kernel, Protocol):
    """A kernel that says what it does not compute."""

    def refuses(self, spec: AttentionSpec) -> str | None:
        """Why it cannot compute this attention, or None."""
        ...


IN_ORDER: tuple[Candidate, ...] = (SDPA(), Eager())  # fastest first; eager, the oracle, takes everything
KERNELS: Mapping[str, Candidate] = {kernel.name: kernel for kernel in IN_ORDER}


def choose(name: str | None, spec: AttentionSpec) -> Candidate:
    """The kernel of that name, or without one the first that takes this attention. Raises KernelError."""
    if name is None:
        return next(kernel for kernel in KERNELS.values() if kernel.refuses(spec) is None)
    if name not in KERNELS:
        raise KernelError(f"there is no kernel {name!r}{did_you_mean(name, KERNELS)}; there are {', '.join(KERNELS)}")
    reason = KERNELS[name].refuses(spec)
    if reason is not None:
        able = [repr(other) for other, kernel in KERNELS.items() if kernel.refuses(spec) is None]
        raise KernelError(f"{reason}; use kernel={' or '.join(able)}")
    return KERNELS[name]
