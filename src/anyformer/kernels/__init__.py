"""Ways to compute attention: a kernel is one file and one line in KERNELS. An option it lacks is refused, never dropped."""

from __future__ import annotations

from anyformer.errors import KernelError, did_you_mean
from anyformer.kernels.eager import Eager
from anyformer.kernels.sdpa import SDPA
from anyformer.layers.attention import AttentionSpec

KERNELS = {kernel.name: kernel for kernel in (SDPA(), Eager())}  # fastest first; eager, the oracle, takes everything


def choose(name: str | None, spec: AttentionSpec) -> SDPA | Eager:
    """Return the kernel of that name, or without one the first that takes this attention. Raises KernelError."""
    if name is None:
        return next(kernel for kernel in KERNELS.values() if kernel.refuses(spec) is None)
    if name not in KERNELS:
        raise KernelError(f"there is no kernel {name!r}{did_you_mean(name, KERNELS)}; there are {', '.join(KERNELS)}")
    reason = KERNELS[name].refuses(spec)
    if reason is not None:
        able = [repr(other) for other, kernel in KERNELS.items() if kernel.refuses(spec) is None]
        raise KernelError(f"{reason}; use kernel={' or '.join(able)}")
    return KERNELS[name]
