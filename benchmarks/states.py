"""Recurrences beside the functions of transformers' classes that compute the same: forward and backward, and one token.

    python -m benchmarks.states --quick

Float32, batch 1, one thread: after projections and convolutions, 16 heads of 64 with states of 128 (Mamba-2), 4 heads of 128
by 128 (gated DeltaNet, KDA), 1,024 channels with states of 16 (Mamba); both sides are compared first.
Last, a hybrid of the two kinds of layers beside its twin of attention alone. Memory is kept as `train` keeps it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.mamba.modeling_mamba import mamba_selective_scan
from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from anyformer import build
from anyformer.cache import KVCache
from anyformer.families.llama import llama
from anyformer.families.qwen3_next import hybrid
from anyformer.layers.delta_rule import delta_rule
from anyformer.layers.delta_rule_by_feature import delta_rule_by_feature
from anyformer.layers.linear_attention import linear_attention
from anyformer.layers.selective_scan import selective_scan
from anyformer.training.step.device import keep_heap
from benchmarks.measure import arguments, cpu_seconds, record, rounded, row, speed_ratio, turns

LENGTHS, BARS = (2048, 8192), {"Mamba-2": (3.5, 3.0), "gated DeltaNet": (1.5, 3.0)}
Pass = Callable[[], Tensor]


def drawn(*shape: int) -> Tensor:
    return torch.randn(1, *shape).requires_grad_()


def both_ways(run: Pass) -> Callable[[], float]:
    """What runs forward and backward and returns the CPU seconds."""
    return lambda: cpu_seconds(lambda: run().sum().backward())


def mamba2(length: int) -> tuple[Pass, Pass]:
    """Ours and theirs, on the same numbers."""
    q, k, v = drawn(length, 1, 128), drawn(length, 1, 128), drawn(length, 16, 64)
    step, rate = torch.rand(1, length, 16).requires_grad_(), -torch.rand(16)
    scan: Any = mamba2_chunk_scan
    return (
        lambda: linear_attention(q, k, v * step[..., None], rate * step, None, None, False)[0],
        lambda: scan(v, step, rate, k, q, 256),
    )


def mamba(length: int) -> tuple[Pass, Pass]:
    """Ours and theirs, on the same numbers."""
    x, b, c = drawn(length, 1024), drawn(length, 16), drawn(length, 16)
    step, rate = (torch.rand(1, length, 1024) * 0.1).requires_grad_(), (-torch.rand(1024, 16) * 16).requires_grad_()
    scan: Any = mamba_selective_scan
    return (
        lambda: selective_scan(x, step, rate.t(), b, c, None, None)[0],
        lambda: scan(x.mT, step.mT, rate, b.mT, c.mT).mT,
    )


def delta_net(length: int) -> tuple[Pass, Pass]:
    """Ours and theirs, on the same numbers."""
    q, k, v = (drawn(length, 4, 128) for _ in range(3))
    k = F.normalize(k.detach(), dim=-1).requires_grad_()
    decay, rate = (-torch.rand(1, length, 4)).requires_grad_(), torch.rand(1, length, 4).requires_grad_()
    chunked: Any = torch_chunk_gated_delta_rule
    return (
        lambda: delta_rule(q * 128**-0.5, k, v, decay, rate, None, None, False)[0],
        lambda: chunked(q, k, v, decay, rate)[0],
    )


def kda(length: int) -> tuple[Pass, Pass]:
    """Ours and theirs, on the same numbers."""
    q, k, v = (drawn(length, 4, 128) for _ in range(3))
    k = F.normalize(k.detach(), dim=-1).requires_grad_()
    decay, rate = (-torch.rand(1, length, 4, 128)).requires_grad_(), torch.rand(1, length, 4).requires_grad_()
    chunked: Any = chunk_kimi_delta_attention
    return (
        lambda: delta_rule_by_feature(q * 128**-0.5, k, v, decay, rate, None, None, False)[0],
        lambda: chunked(q, k, v, decay, rate)[0],
    )


def one_token() -> tuple[Callable[[], float], Callable[[], float]]:
    """The next eight tokens of three layers with a state after 64 tokens and after 8,192."""
    whole = hybrid(llama(4, 256, 4, 512, vocab_size=256, context=16_384), 2, 4)
    states = whole.but(stack=whole.stack.but(blocks=whole.stack.blocks[:3]))  # the fourth attends
    model, found = build(states), []
    for length in (64, 8192):
        cache = KVCache(states, batch=1, length=length + 64)
        with torch.no_grad():
            model(torch.zeros(1, length, dtype=torch.long), cache=cache, output_logits=False)

        def step(cache: KVCache = cache) -> None:
            with torch.no_grad():
                for _ in range(8):
                    model(torch.zeros(1, 1, dtype=torch.long), cache=cache)

        found.append(lambda step=step: cpu_seconds(step))
    return found[0], found[1]


def layers(mixed: bool, length: int) -> Callable[[], float]:
    """A step of four layers at a length: three states and one attention, or attention alone."""
    plain = llama(4, 512, 8, 1536, vocab_size=256, context=length)
    model, ids = build(hybrid(plain, 4, 4) if mixed else plain), torch.randint(0, 256, (1, length))
    return lambda: cpu_seconds(lambda: model(ids).logits.sum().backward())


def main() -> None:
    options = arguments(__doc__ or "")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_heap()
    n = 1 if options.quick else 5
    rows: list[dict[str, Any]] = []
    for name, make in (("Mamba-2", mamba2), ("gated DeltaNet", delta_net)):
        middle = {}
        for length, least in zip(LENGTHS, BARS[name], strict=True):
            ours, theirs = make(length)
            torch.testing.assert_close(ours(), theirs(), atol=1e-3, rtol=1e-3)
            taken = turns({"ours": both_ways(ours), "transformers": both_ways(theirs)}, n)
            middle[length] = statistics.median(taken["ours"])
            rows.append(row(f"{name} at {length:,}", speed_ratio(taken), least=least, seconds=rounded(taken)))
        rows.append(row(f"{name}: time of 8,192 over 2,048", middle[8192] / middle[2048], most=4.6))
    for name, make, length, least in (("Mamba", mamba, 512, 50.0), ("KDA", kda, 2048, 8.0)):
        ours, theirs = make(length)  # longer, the classes take minutes
        torch.testing.assert_close(ours(), theirs(), atol=1e-3, rtol=1e-3)
        taken = turns({"ours": both_ways(ours), "transformers": both_ways(theirs)}, 1)
        rows.append(row(f"{name} at {length:,}", speed_ratio(taken), least=least, seconds=rounded(taken)))
        taken = turns({f"{length:,}": both_ways(make(length)[0]) for length in LENGTHS}, n)
        growth = speed_ratio(taken, *(f"{length:,}" for length in LENGTHS))
        rows.append(row(f"{name}: time of 8,192 over 2,048", growth, most=4.6, seconds=rounded(taken)))
    short, long = one_token()
    taken = turns({"short": short, "long": long}, 3 * n)
    growth = statistics.median(taken["long"]) / statistics.median(taken["short"])
    rows.append(row("one token of states after 8,192 over after 64", growth, most=1.1, seconds=rounded(taken)))
    taken = turns({"ours": layers(True, 8192), "attention": layers(False, 8192)}, n)
    ratio = speed_ratio(taken, "ours", "attention")
    rows.append(row("hybrid 3 : 1 beside attention alone at 8,192", ratio, least=1.4, seconds=rounded(taken)))
    record("states", options.out, rows, {"threads": 1, "dtype": "float32"})


if __name__ == "__main__":
    main()
