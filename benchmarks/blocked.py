"""Attention that leaves out hidden blocks, beside what it is chosen over: forward and backward, by mask and by length.

    python -m benchmarks.blocked --quick

4 heads of 64 in float32, batch 1, one thread. Beside it runs PyTorch's fused attention with a dense mask, or attention
written out where scores are capped. The plan is part of the time, each turn anew, as if a pass had but one layer. The rows
of 256 to 1,024 tokens are what the limits in `kernels/fastest.py` come from. Longformer's layer has as many heads again, for
its marked token; "choose" is the kernel that `fastest.py` takes. "rows" are beside PyTorch's operator where that keeps all
weights for a bias that is learned, and in bfloat16, where the machine has it; batch 8.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from anyformer.families.longformer import seen
from anyformer.kernels.blocked import Blocked
from anyformer.kernels.eager import Eager
from anyformer.kernels.fastest import MOST_BF16, Fastest
from anyformer.kernels.plan import plan
from anyformer.kernels.rows import Rows
from anyformer.kernels.sdpa import SDPA
from anyformer.layers import BlockEnds, Causal, Heads, Mask, SameBlock, SlidingWindow, Strided
from anyformer.layers.context import Kernel, SoftmaxOptions
from anyformer.layers.global_blocks import GlobalBlocks
from anyformer.layers.mask import visible
from anyformer.layers.tokens import Tokens, plain_tokens
from anyformer.spec import Count, Window
from benchmarks.measure import arguments, cpu_seconds, native_bfloat16, record, rounded, row, speed_ratio, turns

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
    "Longformer 512": (seen(512), 6),
    "8 documents": (Causal(), 10),
}


def tokens(name: str, length: int) -> Tokens:
    plain = plain_tokens(length, torch.device("cpu"))
    if name == "Longformer 512":
        return replace(plain, mark=(plain.position == 0).long())
    if name != "8 documents":
        return plain
    at = torch.arange(length)[None]
    return Tokens(at % (length // 8), at // (length // 8) + 1)


def n_heads(mask: Mask) -> int:
    return len(mask.masks) * HEADS if isinstance(mask, Heads) else HEADS


def step(kernel: Kernel, mask: Mask, of: Tokens, cap: float | None = None) -> Callable[[], float]:
    """What makes a plan and runs both passes, and returns the CPU seconds."""
    heads = n_heads(mask)
    q, k, v = (torch.randn(1, of.n, heads, WIDTH).transpose(1, 2).requires_grad_() for _ in range(3))
    grad = torch.randn(1, heads, of.n, WIDTH)

    def run() -> None:
        seen = kernel.prepare(mask, None, of, of, heads)
        y, _ = kernel(q, k, v, seen, SoftmaxOptions(0.125, softcap=cap))
        torch.autograd.grad(y, (q, k, v), grad)

    return lambda: cpu_seconds(run)


def beside(name: str, mask: Mask, of: Tokens, n: int, least: float, cap: float | None = None) -> dict[str, Any]:
    """How many times as fast as the kernel that would run without blocks."""
    other: Kernel = SDPA() if cap is None else Eager()
    taken = turns({"ours": step(Blocked(), mask, of, cap), "other": step(other, mask, of, cap)}, n)
    share = round(computed(mask, of) / (n_heads(mask) * of.n * of.n), 4)
    ratio = speed_ratio(taken, "ours", "other")
    return row(
        f"{name} at {of.n:,}", ratio, least=least, share_of_pairs=share, beside=other.name, seconds=rounded(taken)
    )


def computed(mask: Mask, of: Tokens) -> int:
    """How many pairs of a query and a key of a head the blocks hold."""
    return sum(section.pairs for section in plan(mask, of, of, n_heads(mask)))


def shown_pairs(mask: Mask, of: Tokens) -> int:
    """How many of them the mask shows, counted one by one."""
    shown = visible(mask, of, of, n_heads(mask))
    assert shown is not None
    return int(shown.expand(-1, n_heads(mask), -1, -1).sum())


def growth(name: str, lengths: tuple[int, ...], n: int, most: float, by_pairs: bool = False) -> dict[str, Any]:
    """How the time grows from the first length to the last, or that over how the visible pairs do."""
    mask = PATTERNS[name][0]
    taken = turns({str(length): step(Blocked(), mask, tokens(name, length)) for length in lengths}, n)
    first, *_, last = (statistics.median(each) for each in taken.values())
    pairs = [shown_pairs(mask, tokens(name, lengths[i])) if by_pairs else 1 for i in (0, -1)]
    ratio = last / first * pairs[0] / pairs[1]
    what = "time over visible pairs, both" if by_pairs else "time"
    return row(f"{name}: {what} of {lengths[-1]:,} over {lengths[0]:,}", ratio, most=most, seconds=rounded(taken))


def of_plan(name: str, length: int, n: int) -> dict[str, Any]:
    """The share of making the plan in both passes of one layer."""
    mask, of = PATTERNS[name][0], tokens(name, length)

    def planning() -> float:
        return cpu_seconds(lambda: Blocked().prepare(mask, None, of, of, n_heads(mask)))

    taken = turns({"plan": planning, "all": step(Blocked(), mask, of)}, n)
    return row(
        f"{name}: share of the plan at {length:,}", speed_ratio(taken, "all", "plan"), most=0.15, seconds=rounded(taken)
    )


def chosen(name: str, mask: Mask, length: int, n: int) -> dict[str, Any]:
    """The time of the kernel that is chosen over that of PyTorch's fused attention."""
    work = {
        "ours": step(Fastest(Blocked(), SDPA()), mask, tokens("", length)),
        "other": step(SDPA(), mask, tokens("", length)),
    }
    taken = turns(work, n)
    ratio = speed_ratio(taken, "other", "ours")
    return row(f"choose over sdpa, {name} at {length:,}", ratio, most=1.05, seconds=rounded(taken))


def of_rows(length: int, dtype: torch.dtype, learned: bool, n: int) -> dict[str, Any]:
    """How many times as fast rows are as PyTorch's operator, with a learned bias of every pair or without one."""
    of = tokens("", length)
    q, k, v = (torch.randn(8, HEADS, length, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3))
    added = [torch.randn(1, HEADS, length, length, dtype=dtype, requires_grad=True)] * learned
    grad = torch.randn(8, HEADS, length, WIDTH, dtype=dtype)

    def once(kernel: Kernel) -> Callable[[], float]:
        def run() -> None:
            bias = (lambda *_: added[0]) if learned else None
            seen = kernel.prepare(Causal(), bias, of, of, HEADS)
            y, _ = kernel(q, k, v, seen, SoftmaxOptions(0.125))
            torch.autograd.grad(y, [q, k, v, *added], grad)

        return lambda: cpu_seconds(run)

    taken = turns({"ours": once(Rows()), "other": once(SDPA())}, n)
    name = f"rows, {'learned bias' if learned else 'causal'} at {length:,}, {str(dtype).removeprefix('torch.')}"
    return row(name, speed_ratio(taken, "ours", "other"), least=1.0, seconds=rounded(taken))


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
    full = {
        "ours": step(Blocked(), window(256), tokens("", LONG[0])),
        "other": step(SDPA(), Causal(), tokens("", LONG[0])),
    }
    taken = turns(full, n)
    ratio = speed_ratio(taken, "ours", "other")
    rows.append(row(f"window 256 beside all before at {LONG[0]:,}", ratio, least=10.0, seconds=rounded(taken)))
    rows += [growth(name, (8192, *LONG), n, 4.8) for name in ("window 256", "BigBird 64", "Longformer 512")]
    rows += [growth(name, (4096, 8192, LONG[0]), n, 1.2, by_pairs=True) for name in ("strided 128", "fixed 128/8")]
    for name, most in (("window 256", 1.35), ("BigBird 64", 1.35), ("8 documents", 1.35), ("Longformer 512", 1.7)):
        mask, of = PATTERNS[name][0], tokens(name, 8192)
        rows.append(
            row(f"{name}: pairs computed over visible at 8,192", computed(mask, of) / shown_pairs(mask, of), most=most)
        )
    rows += [of_plan(name, 8192, n) for name in PATTERNS]
    for length in (128, 512):
        rows += [chosen(name, mask, length, 20 * n) for name, mask in (("causal", Causal()), ("window 64", window(64)))]
    rows += [of_rows(length, torch.float32, True, 5 * n) for length in (256, 1024)]
    if native_bfloat16():
        rows += [of_rows(length, torch.bfloat16, True, 5 * n) for length in (256, 512)]
        rows += [of_rows(length, torch.bfloat16, False, 5 * n) for length in (MOST_BF16 // 2, MOST_BF16)]
    record("blocked", options.out, rows, {"threads": 1, "shape": {"heads": HEADS, "width": WIDTH, "dtype": "float32"}})


if __name__ == "__main__":
    main()
