"""Measures what the roofline of this machine goes by: products by shape, attention, maps, memory, overheads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.costs.hardware.passes import operators
from anyformer.costs.hardware.rates import Curve, Grid, Pass, Rates
from anyformer.families import preset
from anyformer.layers import GELU, LayerNormSpec, ReLU, RMSNormSpec, RotarySpec, SiLU
from anyformer.layers.activation import ActivationSpec
from anyformer.layers.memory_efficient import MemoryEfficientGatedDown
from anyformer.layers.tokens import ForwardContext, plain_tokens
from anyformer.measure.calibrate import dtype_name
from anyformer.measure.clock import fastest
from anyformer.measure.runs import decoding_step, training_step
from anyformer.recipe import AdamW
from anyformer.resizing import resize
from anyformer.spec import HeadSpec, MapSpec, ModelSpec, Place, TableSpec, Vocab, Workload
from anyformer.training.objectives.cross_entropy import cross_entropy
from anyformer.training.step.optimizer import clip, optimizer_of

Say = Callable[[str], None]
PASSES: tuple[Pass, Pass] = ("forward", "training")
SECONDS = 0.04  # for one row of a table, at least three calls
CPU_GRID = ((1, 4, 16, 64, 256, 1024), (64, 256, 1024, 4096), (64, 256, 1024, 2048))
CUDA_GRID = ((1, 8, 64, 512, 4096), (128, 512, 2048, 8192), (128, 512, 2048, 8192))
WIDTH = 512  # of the rows that maps are measured on
CPU_FEATURES, CUDA_FEATURES = (2**14, 2**17, 2**20, 2**22), (2**15, 2**19, 2**23, 2**26)
CPU_TOKENS, CUDA_TOKENS = (64, 256, 1024), (128, 512, 2048, 8192)
ONE_QUERY_TOKENS = (64, 256, 1024)
HEAD_WIDTHS = (32, 64, 128)
LOSS_WIDTH, LOSS_VOCAB = 8, 8192
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
    say("norms, activations, positions, loss")
    maps = dict(_maps(device, CUDA_FEATURES if cuda else CPU_FEATURES))
    say("memory")
    reading, copying = _reading(device), _copying(device)
    update = _update(device)
    say("overheads")
    forward, training = _overheads(device, training=False), _overheads(device, training=True)
    return Rates(
        products=products,
        attention=attention,
        maps=maps,
        reading=reading,
        copying=copying,
        update_seconds=update,
        one_query=_one_query(device, ONE_QUERY_TOKENS),
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
                w = _for_one_row(w) if m == 1 else w
                values.append(fastest(lambda x=x, w=w: F.linear(x, w), device, SECONDS) / (2 * m * n * k))
    return Grid(rows_in, rows_out, widths, tuple(values))


def _attention(device: torch.device, dtype: torch.dtype, lengths: tuple[int, ...]) -> dict[str, dict[str, Curve]]:
    found: dict[str, dict[str, Curve]] = {p: {} for p in PASSES}
    for width in HEAD_WIDTHS:
        rows: dict[str, list[tuple[float, float]]] = {p: [] for p in PASSES}
        for n in lengths:
            heads, batch = 4, max(1, lengths[-1] // n)
            q, k, v = (
                torch.randn(batch, n, heads, width, device=device).to(dtype).transpose(1, 2).requires_grad_()
                for _ in range(3)
            )
            flops = 4 * width * heads * batch * n * (n + 1) // 2
            work = lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
            for name, seconds in _both(work, (q, k, v), device):
                rows[name].append((n, seconds / flops))
        for name in PASSES:
            found[name][str(width)] = tuple(rows[name])
    return found


def _maps(device: torch.device, sizes: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Curve]]]:
    """The seconds a feature of the maps between products, in float32."""
    norms: tuple[MapSpec, ...] = (RMSNormSpec(), LayerNormSpec())
    for spec in norms:
        module = spec.build(Place(WIDTH, (WIDTH,))).to(device)
        for p in module.parameters():
            torch.nn.init.ones_(p)
        yield spec.kind, _curves(device, sizes, lambda x, module=module: module(x))
    for activation, name in (
        (SiLU(), "SiLU"),
        (GELU(), "GELU erf"),
        (GELU(form="tanh"), "GELU tanh"),
        (ReLU(), "ReLU"),
    ):
        yield name, _curves(device, sizes, activation)
        yield f"{name} gated", _gated(device, sizes, activation)
    yield "Add", {p: _scaled(_plain(device, sizes), times) for p, times in (("forward", 1), ("training", 2))}
    rotary = RotarySpec()

    def rotate(x: Tensor) -> Tensor:
        heads = x.view(1, -1, WIDTH // 64, 64).transpose(1, 2)
        return rotary.rotate(heads, ForwardContext(plain_tokens(heads.shape[2], device), {}))

    yield "Rotary", _curves(device, sizes, rotate)
    table = torch.randn(1024, WIDTH, device=device)
    yield "Tokens", _curves(device, sizes, lambda x: x + F.embedding(torch.zeros(len(x), device=device).long(), table))
    yield "loss", {"training": _loss(device, sizes)}


def _curves(device: torch.device, sizes: tuple[int, ...], work: Callable[[Tensor], Tensor]) -> dict[str, Curve]:
    rows: dict[str, list[tuple[float, float]]] = {p: [] for p in PASSES}
    for size in (WIDTH, *sizes):
        x = torch.randn(size // WIDTH, WIDTH, device=device, requires_grad=True)
        for name, seconds in _both(lambda x=x: work(x), (x,), device):
            rows[name].append((size, seconds))
    return {name: _beyond_launch(found) for name, found in rows.items()}


def _beyond_launch(rows: list[tuple[float, float]]) -> Curve:
    """Seconds a feature without those that even one row takes: launches are counted by themselves."""
    (_, least), *others = rows
    return tuple((size, max(seconds - least, seconds / 10) / size) for size, seconds in others)


def _gated(device: torch.device, sizes: tuple[int, ...], activation: ActivationSpec) -> dict[str, Curve]:
    """Those of activation(gate) · up, as feed-forwards compute it in training; the map behind it is 8 wide."""
    rows: dict[str, list[tuple[float, float]]] = {p: [] for p in PASSES}
    weight = torch.zeros(LOSS_WIDTH, WIDTH, device=device)
    for size in (WIDTH, *sizes):
        gate, up = (torch.randn(size // WIDTH, WIDTH, device=device, requires_grad=True) for _ in range(2))
        with torch.no_grad():
            rows["forward"].append((size, fastest(lambda g=gate, u=up: activation(g) * u, device, SECONDS)))

        def work(g: Tensor = gate, u: Tensor = up) -> None:
            MemoryEfficientGatedDown.apply(g, u, weight, None, activation).sum().backward()
            g.grad = u.grad = None

        rows["training"].append((size, fastest(work, device, SECONDS)))
    return {name: _beyond_launch(found) for name, found in rows.items()}


def _plain(device: torch.device, sizes: tuple[int, ...]) -> Curve:
    def seconds(size: int) -> float:
        a, b = (torch.randn(size, device=device) for _ in range(2))
        return fastest(lambda: a + b, device, SECONDS) / size

    return tuple((float(size), seconds(size)) for size in sizes)


def _scaled(curve: Curve, times: float) -> Curve:
    return tuple((size, value * times) for size, value in curve)


def _loss(device: torch.device, sizes: tuple[int, ...]) -> Curve:
    """The seconds a logit of the cross-entropy and its gradient, in the chunks of training."""
    spec = HeadSpec(table=TableSpec(rows=Vocab(LOSS_VOCAB)))
    head = spec.build(Place(LOSS_WIDTH, (LOSS_WIDTH,))).to(device)
    torch.nn.init.normal_(head.table.weight)
    rows = []
    for size in sizes[1:]:
        n = max(1, size // LOSS_VOCAB)
        hidden = torch.randn(1, n, LOSS_WIDTH, device=device, requires_grad=True)
        labels = torch.zeros(1, n, dtype=torch.long, device=device)
        rows.append(
            (
                float(size),
                fastest(lambda h=hidden, y=labels: cross_entropy(head, h, y), device, SECONDS) / (n * LOSS_VOCAB),
            )
        )
    return tuple(rows)


def _reading(device: torch.device) -> Curve:
    """Bytes a second of products of one row with matrices that are read in turn, as decoding does."""
    narrow, wide, found = 512, 1024, []
    for nbytes in READ_NBYTES:
        pairs = [
            (_for_one_row(torch.ones(wide, narrow, device=device)), torch.ones(narrow, wide, device=device))
            for _ in range(nbytes // (8 * narrow * wide))
        ]
        x = torch.randn(1, narrow, device=device)

        def work(pairs: list[tuple[Tensor, Tensor]] = pairs, x: Tensor = x) -> None:
            for into, out in pairs:
                F.linear(F.linear(x, into), out)

        found.append((float(nbytes), nbytes / fastest(work, device, 4 * SECONDS)))
    return tuple(found)


def _for_one_row(weight: Tensor) -> Tensor:
    """Return a matrix laid out as `generation.layout` does for decoding: a wide one of a processor column by column."""
    wide = weight.is_cpu and weight.dtype == torch.float32 and weight.shape[0] > weight.shape[1]
    return weight.t().contiguous().t() if wide else weight


def _copying(device: torch.device) -> Curve:
    def rate(nbytes: int) -> float:
        a = torch.ones(nbytes // 4, device=device)
        b = torch.empty_like(a)
        return 2 * nbytes / fastest(lambda: b.copy_(a), device, SECONDS)

    return tuple((float(nbytes), rate(nbytes)) for nbytes in READ_NBYTES)


def _update(device: torch.device) -> float:
    """The seconds a parameter of clipping, AdamW and dropping the gradient."""
    spec = _typical(TYPICAL[0], 4, 256)
    from anyformer.model import build

    model = build(spec, device=device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizer_of(model, spec, AdamW())
    for p in parameters:
        p.grad = torch.ones_like(p)

    def work() -> None:
        clip(parameters, 1.0)
        optimizer.step()

    return fastest(work, device, 4 * SECONDS) / sum(p.numel() for p in parameters)


def _overheads(device: torch.device, *, training: bool) -> tuple[float, float]:
    """The seconds an operator, and a pass besides, that models too small to compute anything take."""
    each, besides = [], []
    for name in TYPICAL:
        seconds, calls = [], []
        for depth in DEPTHS:
            spec = _typical(name, depth, 32)
            step = training_step(spec, 1, 8, device) if training else decoding_step(spec, 1, 16, device)
            seconds.append(fastest(step, device, 8 * SECONDS))
            load = Workload(1, 8) if training else Workload(1, 1, past=15)
            calls.append(sum(o.calls * o.times for o in operators(spec, load)))
        slope = max(1e-9, (seconds[1] - seconds[0]) / (calls[1] - calls[0]))
        each.append(slope)
        besides.append(max(1e-9, seconds[0] - calls[0] * slope))
    return sum(each) / len(each), sum(besides) / len(besides)


def _one_query(device: torch.device, lengths: tuple[int, ...]) -> Curve:
    """The seconds a cached number of attention with one query a row, of eight heads in two groups' rows."""
    batch, groups, kv_heads, width, room, found = 2, 2, 4, 64, 1.25, []
    with torch.inference_mode():
        for n in lengths:
            k, v = (torch.randn(batch, kv_heads, int(room * n), width, device=device)[:, :, :n] for _ in range(2))
            q = torch.randn(batch, kv_heads, groups, width, device=device)
            one, many = (
                fastest(
                    lambda q=q, k=k[:, :, :m], v=v[:, :, :m]: F.scaled_dot_product_attention(q, k, v), device, SECONDS
                )
                for m in (1, n)
            )
            found.append((float(n), max(many - one, many / 4) / (2 * batch * kv_heads * n * width)))
    return tuple(found)


def _typical(name: str, n_layers: int, d_model: int) -> ModelSpec:
    return resize(preset(name), d_model=d_model, n_layers=n_layers, vocab_size=256, context=64)


def _both(work: Callable[[], Tensor], inputs: Any, device: torch.device) -> Iterator[tuple[str, float]]:
    with torch.no_grad():
        yield "forward", fastest(work, device, SECONDS)
    grad = torch.ones_like(work())

    def back() -> None:
        work().backward(grad)
        for x in inputs:
            x.grad = None

    yield "training", fastest(back, device, SECONDS)
