"""How long a call takes: the fastest of several, since whatever else a machine does only ever adds."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def clock_of(device: torch.device) -> Callable[[], float]:
    """The clock of a device: CPU time where one thread computes, which waiting for other programs does not move."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def fastest(work: Callable[[], object], device: torch.device, budget_seconds: float) -> float:
    """The least seconds that a call took, of as many as the budget allows and at least two after a warm-up."""
    synchronise, clock = getattr(torch, device.type).synchronize, clock_of(device)
    work()
    synchronise()
    least, n, end = float("inf"), 0, time.perf_counter() + budget_seconds
    while n < 2 or time.perf_counter() < end:
        start = clock()
        work()
        synchronise()
        least, n = min(least, clock() - start), n + 1
        if least > budget_seconds:  # a size that is far too large for this machine: one call says enough
            break
    return least
