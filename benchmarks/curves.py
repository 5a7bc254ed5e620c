"""Time and memory of both passes by length, for every kernel of attention and every recurrence; time by experts.

    python -m benchmarks.curves

Float32, batch 1, one thread; attention has 4 heads of 64, recurrences the widths of `benchmarks.states`, a mixture of experts
those of `benchmarks.moe`. Each curve in a process of its own: the least CPU seconds of three turns, and by how much the
resident set grows in one. A row says by how much the last doubling raises the time; `docs/performance.svg` draws them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from anyformer.kernels.blocked import Blocked
from anyformer.kernels.eager import Eager
from anyformer.kernels.sdpa import SDPA
from anyformer.layers import Causal
from benchmarks import blocked, measure, moe, states
from benchmarks.blocked import PATTERNS, tokens, window
from benchmarks.classes import growing

TURNS = 3
SHORT, MIDDLE, LONG = (tuple(2**n for n in range(8, last)) for last in (13, 15, 16))
Timed = Callable[[], float]  # runs both passes and returns the CPU seconds


def by_blocks(name: str) -> Callable[[int], Timed]:
    return lambda n: blocked.step(Blocked(), PATTERNS[name][0], tokens(name, n))


def recurrence(make: Callable[[int], tuple[states.Pass, states.Pass]]) -> Callable[[int], Timed]:
    return lambda n: states.both_ways(make(n)[0])


def mixture(n_experts: int) -> Timed:
    """Of a mixture of so many experts, two of which a token goes to."""
    layer, x = moe.mixture(n_experts), torch.randn(moe.BATCH, moe.SEQ_LEN, moe.D_MODEL, requires_grad=True)
    return lambda: measure.cpu_seconds(lambda: layer(x).sum().backward())


# What makes the passes of a size, the sizes, and the most by which the last doubling may raise the time; quadratic: 4.
CURVES: Mapping[str, tuple[Callable[[int], Timed], tuple[int, ...], float]] = {
    "eager, causal": (lambda n: blocked.step(Eager(), Causal(), tokens("", n)), SHORT, 5.0),
    "sdpa, causal": (lambda n: blocked.step(SDPA(), Causal(), tokens("", n)), MIDDLE, 5.0),
    "sdpa, window 256": (lambda n: blocked.step(SDPA(), window(256), tokens("", n)), SHORT, 5.0),
    "blocked, window 256": (by_blocks("window 256"), LONG, 2.4),
    "blocked, BigBird 64": (by_blocks("BigBird 64"), LONG, 2.4),
    "blocked, Longformer 512": (by_blocks("Longformer 512"), LONG, 2.4),
    "blocked, strided 128": (by_blocks("strided 128"), MIDDLE, 5.0),
    "LSH layer": (growing, LONG[2:], 2.5),
    "Mamba-2": (recurrence(states.mamba2), LONG, 2.4),
    "gated DeltaNet": (recurrence(states.delta_net), LONG, 2.4),
    "KDA": (recurrence(states.kda), LONG, 2.4),
    "Mamba": (recurrence(states.mamba), LONG, 2.4),
    "experts, top 2": (mixture, (4, 8, 16, 32, 64, 128), 1.2),
}


def points(name: str, sizes: tuple[int, ...]) -> list[tuple[float, int]]:
    """(CPU seconds, bytes by which the resident set grows) of a curve at each size."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = []
    for n in sizes:
        timed = CURVES[name][0](n)
        timed()
        found.append((min(timed() for _ in range(TURNS)), measure.growth_nbytes(timed)))
    return found


def curve(name: str, sizes: tuple[int, ...], most: float) -> dict[str, Any]:
    found = measure.printed_elsewhere("benchmarks.curves", "--points", name, *map(str, sizes))
    seconds = {n: float(f"{taken:.4g}") for n, (taken, _) in zip(sizes, found, strict=True)}
    raised = seconds[sizes[-1]] / seconds[sizes[-2]]
    nbytes = {n: grown for n, (_, grown) in zip(sizes, found, strict=True)}
    what = f"{name}: time of {sizes[-1]:,} over {sizes[-2]:,}"
    return measure.row(what, raised, most=most, curve=name, seconds=seconds, nbytes=nbytes)


def main() -> None:
    if "--points" in sys.argv:
        name, *sizes = sys.argv[sys.argv.index("--points") + 1 :]
        print(json.dumps(points(name, tuple(map(int, sizes)))))
        return
    given = measure.arguments("Time and memory by length.")
    rows = [curve(name, sizes[:-2] if given.quick else sizes, most) for name, (_, sizes, most) in CURVES.items()]
    measure.record("curves", given.out, rows, {"threads": 1, "dtype": "float32"})


if __name__ == "__main__":
    main()
