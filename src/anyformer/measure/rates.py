"""Measures what the roofline of this machine goes by: products by shape, attention, maps, memory, overheads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.costs.hardware.rates import Curve, Grid, Rates
from anyformer.families import preset
from anyformer.generation.layout import by_columns
from anyformer.measure.calibrate import Say, dtype_name, fastest
from anyformer.measure.runs import decoding_step, training_step
from anyformer.model import build
from anyformer.observation.observer import observed_call
from anyformer.observation.passes import DeviceKind, forward_pass, training_pass
from anyformer.recipe import AdamW
from anyformer.resizing import resize
from anyformer.spec import ModelSpec
from anyformer.training.step.optimizer import clip, optimizer_of, ways_of

aten = torch.ops.aten
PHASES = ("forward", "backward")
SECONDS = 0.04  # for one row of a table, at least three calls
CPU_GRID = ((1, 4, 16, 64, 256, 1024), (64, 256, 1024, 4096), (64, 256, 1024, 2048))
CUDA_GRID = ((1, 8, 64, 512, 4096), (128, 512, 2048, 8192), (128, 512, 2048, 8192))
WIDTH = 512  # of the rows that norms and softmax are measured on
CPU_NUMBERS, CUDA_NUMBERS = (2**14, 2**17, 2**20, 2**22), (2**15, 2**19, 2**23, 2**26)
CPU_TOKENS, CUDA_TOKENS = (64, 256, 1024), (128, 512, 2048, 8192)
ONE_QUERY_TOKENS = (64, 256, 1024)
HEAD_WIDTHS = (32, 64, 128)
READ_NBYTES = (2**22, 2**24, 2**26, 2**28)
DEPTHS = (2, 8)  # of the models whose difference is overhead
TYPICAL = ("llama2", "gpt2")


def measured_rates(device: torch.device, dtypes: Iterable[torch.dtype], say: Say = lambda _: None) -> Rates:
    """The rates of a device in half a minute to a minute; `say` hears what is being measured."""
    cuda = device.type == "cuda"
    products, attention = {}, {}
    for dtype in dtypes:
        name = dtype_name(dtype)
        say(f"products in {name}")
        products[name] = _grid(device, dtype, CUDA_GRID if cuda else CPU_GRID)
        say(f"attention in {name}")
        attention[name] = _attention(device, dtype, CUDA_TOKENS if cuda else CPU_TOKENS)
    say("norms, activations, copies")
    others = dict(_others(device, CUDA_NUMBERS if cuda else CPU_NUMBERS))
    say("memory")
    reading, copying = _reading(device), _copying(device)
    update = _update(device)
    say("overheads")
    forward, training = _overheads(device, training=False), _overheads(device, training=True)
    return Rates(
        products=products,
        attention=attention,
        others=others,
        reading=reading,
        copying=copying,
        update_seconds=update,
        one_query=_one_query(device),
        overhead_seconds={"forward": forward[0], "training": training[0]},
        pass_seconds={"forward": forward[1], "training": training[1]},
        asynchronous=cuda,
    )


def _grid(device: torch.device, dtype: torch.dtype, axes: tuple[tuple[int, ...], ...]) -> Grid:
    values, (rows_in, rows_out, widths) = [], axes
    for m in rows_in:
        for n in rows_out:
            for k in widths:
                x, w = (torch.randn(rows, k, device=device).to(dtype) for rows in (m, n))
                w = by_columns(w) if m == 1 else w
                values.append(fastest(lambda x=x, w=w: F.linear(x, w), device, SECONDS) / (2 * m * n * k))
    return Grid(rows_in, rows_out, widths, tuple(values))


def _attention(device: torch.device, dtype: torch.dtype, lengths: tuple[int, ...]) -> dict[str, dict[str, Curve]]:
    found: dict[str, dict[str, Curve]] = {phase: {} for phase in PHASES}
    for width in HEAD_WIDTHS:
        for n in lengths:
            heads, batch = 4, max(1, lengths[-1] // n)
            q, k, v = (
                torch.randn(batch, n, heads, width, device=device).to(dtype).transpose(1, 2).requires_grad_()
                for _ in range(3)
            )
            flops = 4 * width * heads * batch * n * (n + 1) // 2
            work = lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
            forward, both = _both(work, (q, k, v), device)
            backward = max(both - forward, forward) / 2
            for phase, seconds in zip(PHASES, (forward, backward), strict=True):
                found[phase][str(width)] = (*found[phase].get(str(width), ()), (n, seconds / flops))
    return found


# What is no product, each one operator of two tensors [row, WIDTH]; how an operator is called is seen when it is timed.
OTHERS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: -x,
    lambda x, y: x.clone(),
    lambda x, y: x.bfloat16(),
    lambda x, y: torch.cat((x, y)),
    lambda x, y: x.sum(-1),
    lambda x, y: x.mean(-1, keepdim=True),
    lambda x, y: x.square(),
    lambda x, y: x.exp(),
    lambda x, y: x.tanh(),
    lambda x, y: x.sigmoid(),
    lambda x, y: x.relu(),
    lambda x, y: aten.threshold_backward(x, y, 0),
    lambda x, y: F.silu(x),
    lambda x, y: aten.silu_backward(x, y),
    lambda x, y: F.gelu(x),
    lambda x, y: aten.gelu_backward(x, y),
    lambda x, y: x.softmax(-1),
    lambda x, y: aten._softmax_backward_data(x, y, -1, x.dtype),
    lambda x, y: x.log_softmax(-1),
    lambda x, y: aten.native_layer_norm(x, [WIDTH], y[0], y[0], 1e-5),
    lambda x, y: aten.native_layer_norm_backward(x, y, [WIDTH], x[:, :1], x[:, :1], y[0], y[0], [True, True, True]),
    lambda x, y: x.masked_fill_(y[:, :1] > 2, 0.0),
)


def _others(device: torch.device, sizes: tuple[int, ...]) -> Iterator[tuple[str, Curve]]:
    """The seconds a byte of operators that are no products, in float32, beyond what even one row takes."""
    for work in OTHERS:
        rows, name = [], ""
        for size in (WIDTH, *sizes):
            x, y = (torch.randn(size // WIDTH, WIDTH, device=device) for _ in range(2))
            seen = observed_call(work, x, y)
            name = seen[-1].name
            seconds = fastest(lambda work=work, x=x, y=y: work(x, y), device, SECONDS)
            rows.append((float(sum(o.nbytes for o in seen)), seconds))
        (_, least), *larger = rows
        yield name, tuple((nbytes, max(seconds - least, seconds / 10) / nbytes) for nbytes, seconds in larger)


def _reading(device: torch.device) -> Curve:
    """Bytes a second of products of one row with matrices that are read in turn, as decoding does."""
    narrow, wide, found = 512, 1024, []
    for nbytes in READ_NBYTES:
        pairs = [
            (by_columns(torch.ones(wide, narrow, device=device)), torch.ones(narrow, wide, device=device))
            for _ in range(nbytes // (8 * narrow * wide))
        ]
        x = torch.randn(1, narrow, device=device)

        def work(pairs: list[tuple[Tensor, Tensor]] = pairs, x: Tensor = x) -> None:
            for into, out in pairs:
                F.linear(F.linear(x, into), out)

        found.append((float(nbytes), nbytes / fastest(work, device, 4 * SECONDS)))
    return tuple(found)


def _copying(device: torch.device) -> Curve:
    def rate(nbytes: int) -> float:
        a = torch.ones(nbytes // 4, device=device)
        b = torch.empty_like(a)
        return 2 * nbytes / fastest(lambda: b.copy_(a), device, SECONDS)

    return tuple((float(nbytes), rate(nbytes)) for nbytes in READ_NBYTES)


def _update(device: torch.device) -> float:
    """The seconds a parameter of clipping, AdamW and dropping the gradient."""
    model = build(_typical(TYPICAL[0], 4, 256), device=device)
    ways = ways_of(model)
    parameters, optimizer = list(ways), optimizer_of(AdamW(), model, ways)
    for p in parameters:
        p.grad = torch.ones_like(p)

    def work() -> None:
        clip(parameters, 1.0)
        optimizer.step()

    return fastest(work, device, 4 * SECONDS) / sum(p.numel() for p in parameters)


def _overheads(device: torch.device, *, training: bool) -> tuple[float, float]:
    """The seconds an operator, and a pass besides, that models too small to compute anything take."""
    each, besides = [], []
    kind: DeviceKind = "cuda" if device.type == "cuda" else "cpu"
    for name in TYPICAL:
        seconds, calls = [], []
        for depth in DEPTHS:
            spec = _typical(name, depth, 32)
            if training:
                step = training_step(spec, 1, 8, device)
                seen = training_pass(spec, batch=1, seq_len=8, device=kind).operators
            else:
                step = decoding_step(spec, 1, 16, device)
                seen = forward_pass(spec, batch=1, query=1, past=15, dtype=torch.float32, device=kind)
            seconds.append(fastest(step, device, 8 * SECONDS))
            calls.append(sum(o.times for o in seen))
        slope = max(1e-9, (seconds[1] - seconds[0]) / (calls[1] - calls[0]))
        each.append(slope)
        besides.append(max(1e-9, seconds[0] - calls[0] * slope))
    return sum(each) / len(each), sum(besides) / len(besides)


def _one_query(device: torch.device) -> Curve:
    """The seconds a cached byte of attention with one query a row, of eight heads in two groups' rows."""
    batch, groups, kv_heads, width, room, found = 2, 2, 4, 64, 1.25, []
    with torch.inference_mode():
        for n in ONE_QUERY_TOKENS:
            k, v = (torch.randn(batch, kv_heads, int(room * n), width, device=device)[:, :, :n] for _ in range(2))
            q = torch.randn(batch, kv_heads, groups, width, device=device)
            one, many = (
                fastest(
                    lambda q=q, k=k[:, :, :m], v=v[:, :, :m]: F.scaled_dot_product_attention(q, k, v), device, SECONDS
                )
                for m in (1, n)
            )
            found.append((float(n), max(many - one, many / 4) / (8 * batch * kv_heads * n * width)))
    return tuple(found)


def _typical(name: str, n_layers: int, d_model: int) -> ModelSpec:
    return resize(preset(name), d_model=d_model, n_layers=n_layers, vocab_size=256, context=64)


def _both(work: Callable[[], Tensor], inputs: Any, device: torch.device) -> tuple[float, float]:
    """The seconds of a forward pass, and of forward and backward passes."""
    with torch.no_grad():
        forward = fastest(work, device, SECONDS)
    grad = torch.ones_like(work())

    def back() -> None:
        work().backward(grad)
        for x in inputs:
            x.grad = None

    return forward, fastest(back, device, SECONDS)
