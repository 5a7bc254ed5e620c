"""This machine's measured peaks: matrix products by dtype, and reading memory. What a speed is a share of.

The two axes of the roofline: Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from anyformer.disk.cache import recall, remember

PEAKS = "peaks"  # the room of the cache
Say = Callable[[str], None]  # what is being measured, one after the other
SIDES = (512, 1024, 2048)  # of square products; the best counts, since caches and tiles favour different ones
SECONDS = 0.8  # for one peak
READ_NBYTES = 256 << 20  # larger than a cache of the last level


@dataclass(frozen=True)
class Machine:
    """A processor or accelerator as PyTorch uses it, and its measured peaks."""

    processor: str
    device: str
    threads: int
    torch_version: str
    peak_flops_per_second: dict[str, float]  # by dtype, of large matrix products; a multiply-add is two FLOPs
    read_nbytes_per_second: float

    @property
    def identity(self) -> tuple[str, str, int, str]:
        """What the peaks depend on: on another machine, or with other threads, they are measured anew."""
        return self.processor, self.device, self.threads, self.torch_version

    def peak(self, dtype: torch.dtype) -> float:
        """FLOPs per second of large matrix products in a dtype that was measured."""
        return self.peak_flops_per_second[dtype_name(dtype)]

    @staticmethod
    def here(device: torch.device) -> Machine:
        """This machine, nothing of it measured."""
        return Machine(_processor(device), str(device), torch.get_num_threads(), torch.__version__, {}, 0.0)


def calibrate(
    device: torch.device | str = "cpu",
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16),
    *,
    anew: bool = False,
) -> Machine:
    """The machine with its peaks, measured once (a second for each) and then kept in the cache directory.

    `anew` measures again what is known.
    """
    device = torch.device(device)
    fresh = Machine.here(device)
    known = replace(fresh, **(recall(PEAKS, fresh.identity) or {}))
    named = {dtype_name(dtype): dtype for dtype in dtypes}
    missing = {name: dtype for name, dtype in named.items() if anew or name not in known.peak_flops_per_second}
    if not missing and known.read_nbytes_per_second:
        return known
    peaks = known.peak_flops_per_second | {name: gemm_peak(dtype, device) for name, dtype in missing.items()}
    bandwidth = (not anew and known.read_nbytes_per_second) or memory_bandwidth(device)
    measured = {"peak_flops_per_second": peaks, "read_nbytes_per_second": bandwidth}
    remember(PEAKS, fresh.identity, measured)
    return replace(fresh, **measured)


TICK_SECONDS = 1e-9  # of the finest clock: no call takes less


def fastest(work: Callable[[], object], device: torch.device, budget_seconds: float) -> float:
    """The least seconds that a call took, of as many as the budget allows and at least two after a warm-up.

    The least, since whatever else a machine does only ever adds; of a single thread, CPU time, which waiting does not move.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    synchronise, clock = getattr(torch, device.type).synchronize, time.process_time if alone else time.perf_counter
    work()
    synchronise()
    least, n, end = float("inf"), 0, time.perf_counter() + budget_seconds
    while n < 2 or time.perf_counter() < end:
        start = clock()
        work()
        synchronise()
        least, n = min(least, max(clock() - start, TICK_SECONDS)), n + 1
        if least > budget_seconds:  # a size that is far too large for this machine: one call says enough
            break
    return least


def gemm_peak(dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> float:
    """FLOPs per second of square matrix products, the best of several sizes, in about a second."""
    device, best = torch.device(device), 0.0
    for side in SIDES:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        seconds = fastest(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device, SECONDS / len(SIDES))
        best = max(best, 2 * side**3 / seconds)
        if 8 * seconds > SECONDS:  # what the next would take, where a dtype has no arithmetic of its own
            break
    return best


def memory_bandwidth(device: torch.device | str = "cpu") -> float:
    """Bytes per second of reading memory that no cache holds, in about a second."""
    device = torch.device(device)
    numbers = torch.ones(READ_NBYTES // 4, device=device)
    return READ_NBYTES / fastest(numbers.sum, device, SECONDS)


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    amx = ", AMX" if any(line.startswith("flags") and " amx_bf16" in line for line in lines) else ""
    return f"{next(models, platform.machine())} ({torch.backends.cpu.get_cpu_capability()}{amx})"


def dtype_name(dtype: torch.dtype) -> str:
    """What a dtype is called in figures and files: "bfloat16"."""
    return str(dtype).removeprefix("torch.")
