"""Attention that leaves out hidden blocks, beside what it is chosen over: forward and backward, by mask and by length.

    python -m benchmarks.blocked --quick

4 heads of 64 in float32, batch 1, one thread. Beside it runs PyTorch's fused attention with a dense mask, or attention
written out where scores are capped. The plan is part of the time, each turn anew, as if a pass had but one layer. The rows
of 256 to 1,024 tokens are what the limits in `kernels/fastest.py` come from.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from anyformer.kernels.blocked import Blocked
from anyformer.kernels.eager import Eager
from anyformer.kernels.plan import plan
from anyformer.kernels.sdpa import SDPA
from anyformer.layers import BlockEnds, Causal, Mask, SameBlock, SlidingWindow, Strided
from anyformer.layers.global_blocks import GlobalBlocks
from anyformer.layers.tokens import Kernel, Tokens, plain_tokens
from anyformer.spec import Count, Window
from benchmarks.measure import arguments, cpu_seconds, record, rounded, row, speed_ratio, turns

HEADS, WIDTH = 4, 64
LONG = (16_384, 32_768)  # too long for a dense mask
CAP = 50.0


def window(size: int) -> Mask:
    return Causal() & SlidingWindow(size=Window(size))


PATTERNS: Mapping[str, tuple[Mask, float]] = {  # with the bar of each at 8,192 tokens
    "window 256": (window(256), 14),
    "strided 128": (Causal() & (SlidingWindow(size=Window(128)) | Strided(stride=Window(128))), 14),
    "fixed 128/8": (Causal() & (SameBlock(size=Window(128)) | BlockEnds(size=Window(128), last=Count(8))), 13),
    "BigBird 64": (GlobalBlocks(size=Window(64), n_random=Count(3)), 8),
    "8 documents": (Causal(), 10),
}


def tokens(name: str, length: int) -> Tokens:
    if name != "8 documents":
        return plain_tokens(length, torch.device("cpu"))
    at = torch.arange(length)[None]
    return Tokens(at % (length // 8), at // (length // 8) + 1)


def step(kernel: Kernel, mask: Mask, of: Tokens, cap: float | None = None) -> Callable[[], float]:
    """What makes a plan and runs both passes, and returns the CPU seconds."""
    q, k, v = (torch.randn(1, of.n, HEADS, WIDTH).transpose(1, 2).requires_grad_() for _ in range(3))
    grad = torch.randn(1, HEADS, of.n, WIDTH)

    def run() -> None:
        seen = kernel.prepare(mask, None, of, of, HEADS)
        y, _ = kernel(q, k, v, seen, scale=0.125, softcap=cap, sink=None, scores=None, dropout=0.0)
        torch.autograd.grad(y, (q, k, v), grad)

    return lambda: cpu_seconds(run)


def beside(name: str, mask: Mask, of: Tokens, n: int, least: float, cap: float | None = None) -> dict[str, Any]:
    """How many times as fast as the kernel that would run without blocks."""
    other: Kernel = SDPA() if cap is None else Eager()
    taken = turns({"ours": step(Blocked(), mask, of, cap), "other": step(other, mask, of, cap)}, n)
    pairs = sum(section.pairs for section in plan(mask, of, of, HEADS))
    share = round(pairs / (HEADS * of.n * of.n), 4)
    ratio = speed_ratio(taken, "ours", "other")
    return row(
        f"{name} at {of.n:,}", ratio, least=least, share_of_pairs=share, beside=other.name, seconds=rounded(taken)
    )


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n = 1 if options.quick else 5
    rows: list[dict[str, Any]] = []
    for length in (256, 512, 1024):
        few = 5 * n
        rows.append(beside("window 256", window(256), tokens("", length), few, 0.0 if length < 1024 else 1.0))
        rows.append(beside("causal, capped", Causal(), tokens("", length), few, 0.0 if length < 512 else 1.0, CAP))
    rows.append(beside("8 documents", Causal(), tokens("8 documents", 1024), 5 * n, 1.0))
    rows.append(beside("window 256, capped", window(256), tokens("", 2048), 2 * n, 7.0, CAP))
    rows.append(beside("causal, capped", Causal(), tokens("", 2048), 2 * n, 2.5, CAP))
    for name, (mask, least) in PATTERNS.items():
        rows.append(beside(name, mask, tokens(name, 8192), n, least))
    for size in (512, 1024, 4096):
        rows += [
            beside(f"window {size}", window(size), tokens("", length), n, 1.0)
            for length in (2048, 4096, 8192)
            if length > size
        ]
    for name in ("window 256", "BigBird 64"):
        mask = PATTERNS[name][0]
        taken = turns({str(length): step(Blocked(), mask, tokens(name, length)) for length in (8192, *LONG)}, n)
        middle = {length: statistics.median(each) for length, each in taken.items()}
        growth = middle["32768"] / middle["8192"]
        rows.append(row(f"{name}: time of 32,768 over 8,192", growth, most=4.8, seconds=rounded(taken)))
    record("blocked", options.out, rows, {"threads": 1, "shape": {"heads": HEADS, "width": WIDTH, "dtype": "float32"}})


if __name__ == "__main__":
    main()
