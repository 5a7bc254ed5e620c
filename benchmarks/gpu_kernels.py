"""What a GPU does at most, and kernels of attention on it: what each mask costs by each of them, whether they agree.

`benchmarks/gpu.py` runs these. A kernel prepares its plan once, which is timed by itself; then both passes are timed,
and the forward pass alone as a field, with gradients asked for, so that flex is compiled once. In bfloat16 each kernel
is compared with a dense one in float32 at the length that is timed: by the norm of the difference, values and
gradients.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.blocked import Blocked
from anyformer.kernels.eager import Eager
from anyformer.kernels.flex import Flex
from anyformer.kernels.sdpa import SDPA
from anyformer.layers import ALiBiSpec, Causal, Mask
from anyformer.layers.context import Kernel, SoftmaxOptions
from anyformer.layers.tokens import Bias, Tokens
from benchmarks import blocked, measure

# By part of the card's name: dense products in bfloat16 a second, bytes of memory a second (NVIDIA's datasheets).
DATASHEET = {
    "H200": (989e12, 4.8e12),
    "H100 PCIe": (756e12, 2.0e12),
    "H100 NVL": (835e12, 3.9e12),
    "H100": (989e12, 3.35e12),
}
HEADS, WIDTH = 16, 64
BATCH = 8  # of plain causal attention at short lengths
SHORT = (512, 2048, 1024)
CAP = 50.0
MOST_DENSE = 4096  # tokens up to which scores are written out in float32
MOST_DIFFERENT, MOST_OF_GRADIENTS = 1e-2, 2e-2  # of bfloat16 from float32, by norms
TURN = 0.03  # seconds that a turn lasts at least
COMPILING = 8.0  # seconds that flex may take before its first result

Row = dict[str, Any]


class Here(NamedTuple):
    """Where a run computes, how large, and when it has to be done."""

    device: torch.device
    tiny: bool  # a rehearsal
    quick: bool
    ends: float  # by time.perf_counter

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def n_turns(self) -> int:
        return 1 if self.tiny else 3 if self.quick else 9

    def left(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return time.perf_counter() + seconds < self.ends

    def wait(self) -> None:
        """Until all that was asked of the device is done."""
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], times: int = 1) -> float:
        """How long a call takes, by the device's clock where it has one."""
        self.wait()
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(times):
                work()
            return (time.perf_counter() - start) / times
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / times

    def free(self) -> None:
        """Give back what nobody holds."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


def name_of(here: Here) -> str:
    return torch.cuda.get_device_name(here.device) if here.cuda else "a CPU, where this is only rehearsed"


def driver() -> str | None:
    """The driver's version, where that is easily known."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def ceilings(here: Here, notes: dict[str, Any]) -> Iterator[Row]:
    """What the card is seen to do, and what its datasheet says; later groups read both."""
    n, nbytes = (256, 1 << 22) if here.tiny else (8192, 1 << 30)
    a, b = (torch.randn(n, n, device=here.device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randint(0, 255, (nbytes,), device=here.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    work = {
        "product": lambda: here.seconds(lambda: a @ b, 20),
        "copy": lambda: here.seconds(lambda: target.copy_(source), 10),
    }
    taken = measure.turns(work, 5)
    found = {name: statistics.median(each) for name, each in taken.items()}
    flops, read = 2 * n**3 / found["product"], 2 * nbytes / found["copy"]
    known = next((peaks for part, peaks in DATASHEET.items() if part in name_of(here)), None)
    notes |= {
        "matmul_flops_per_second": flops,
        "copy_nbytes_per_second": read,
        "peak_is_datasheet": known is not None,
        "peak_flops_per_second": known[0] if known else flops,
        "peak_nbytes_per_second": known[1] if known else read,
    }
    yield measure.row(f"product of {n}³ in bfloat16, TFLOP/s", flops / 1e12, least=0.0)
    yield measure.row("copy on the device, read and written, TB/s", read / 1e12, least=0.0)


class Case(NamedTuple):
    """A mask, its tokens, and the kernel that the best of flex and blocked is set beside."""

    name: str
    mask: Mask
    tokens: Tokens
    kernels: tuple[str, ...]
    beside: str
    least: float = 0.0
    batch: int = 1
    cap: float | None = None
    sinks: bool = False
    alibi: bool = False


def kernel_of(name: str) -> Kernel:
    return {"eager": Eager, "sdpa": SDPA, "full causal": SDPA, "flex": Flex, "blocked": Blocked}[name]()


def cases(here: Here) -> list[Case]:
    """Those with a bar first."""
    small = 32 if here.tiny else 1

    def tokens(length: int, name: str = "") -> Tokens:
        return blocked.tokens(name, length // small).each(lambda fact: fact.to(here.device))

    def window(size: int) -> Mask:
        return blocked.window(size // (8 if here.tiny else 1))

    near = blocked.seen(64 if here.tiny else 512)
    fused, dense = ("sdpa", "flex", "blocked"), ("eager", "flex", "blocked")
    with_bias = ("sdpa", "eager", "blocked") if here.quick else ("sdpa", "eager", "flex", "blocked")
    return [
        Case("softcap 50, causal at 2,048", Causal(), tokens(2048), dense, "eager", 7, 8, cap=CAP),
        Case("window 256 at 8,192", window(256), tokens(8192), fused, "sdpa", 14, 4),
        Case("window 256 at 16,384", window(256), tokens(16_384), (*fused, "full causal"), "full causal", 10, 4),
        Case("8 documents at 8,192", Causal(), tokens(8192, "8 documents"), fused, "sdpa", 10, 4),
        Case("Longformer 512 at 8,192", near, tokens(8192, "Longformer 512"), fused, "sdpa", 6, 2),
        Case("window 128 and sinks at 4,096", window(128), tokens(4096), dense, "eager", 0, 4, sinks=True),
        Case("ALiBi, causal at 4,096", Causal(), tokens(4096), with_bias, "sdpa", alibi=True),
    ]


class Asked(NamedTuple):
    """What a kernel is called with."""

    inputs: list[Tensor]  # q, k, v [batch, heads, token, width], and sinks [heads] where there are some
    grad: Tensor
    how: SoftmaxOptions

    def exact(self) -> Asked:
        """The same numbers in float32."""
        inputs = [x.detach().float().requires_grad_() for x in self.inputs]
        return Asked(inputs, self.grad.float(), self.how._replace(sink=inputs[3] if len(inputs) > 3 else None))

    def forward(self, kernel: Kernel, seen: Any) -> Tensor:
        return kernel(self.inputs[0], self.inputs[1], self.inputs[2], seen, self.how)[0]

    def both(self, kernel: Kernel, seen: Any) -> tuple[Tensor, ...]:
        """Values, and the gradients of the inputs."""
        y = self.forward(kernel, seen)
        return y.detach(), *torch.autograd.grad(y, self.inputs, self.grad)


def asked(case: Case, here: Here) -> Asked:
    heads = n_heads(case.mask, here)
    shape = case.batch, heads, case.tokens.n, WIDTH
    q, k, v, grad = (torch.randn(shape, device=here.device, dtype=torch.bfloat16) for _ in range(4))
    inputs = [q.requires_grad_(), k.requires_grad_(), v.requires_grad_()]
    if case.sinks:
        inputs.append(torch.randn(heads, device=here.device).requires_grad_())
    return Asked(inputs, grad, SoftmaxOptions(WIDTH**-0.5, softcap=case.cap, sink=inputs[3] if case.sinks else None))


def n_heads(mask: Mask, here: Here) -> int:
    """As many again for a mask of local and global heads."""
    heads = HEADS // 4 if here.tiny else HEADS
    return heads * blocked.n_heads(mask) // blocked.HEADS


def bias_of(case: Case, here: Here) -> Bias | None:
    """A slope for each head times the distance."""
    if not case.alibi:
        return None
    slopes = torch.tensor(ALiBiSpec().slopes(n_heads(case.mask, here)), device=here.device).view(1, -1, 1, 1)
    return lambda query, key: slopes * (key.as_keys().position - query.as_queries().position)


def prepared(name: str, case: Case, here: Here) -> Any:
    mask = Causal() if name == "full causal" else case.mask
    return kernel_of(name).prepare(mask, bias_of(case, here), case.tokens, case.tokens, n_heads(case.mask, here))


def first_line(error: BaseException) -> str:
    """The name of an error and the first line of what it says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def differs(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> list[float]:
    """The norm of the difference over that of the exact one, of each."""
    return [float(f"{((a.float() - b).norm() / b.norm()).item():.3g}") for a, b in zip(found, exact, strict=False)]


def of_case(case: Case, here: Here, table: dict[str, Any]) -> Row:
    """The best of flex and blocked beside the case's other kernel, every kernel's times into the table."""
    ask = asked(case, here)
    dense = "eager" if case.tokens.n <= MOST_DENSE or case.cap or case.sinks else "sdpa"
    exact = ask.exact().both(kernel_of(dense), prepared(dense, case, here))
    here.free()
    passes: dict[str, Callable[[], object]] = {}
    found: dict[str, Any] = table.setdefault(case.name, {})
    for name in case.kernels:
        if name == "flex" and not here.left(COMPILING):
            found[name] = {"skipped": "out of time"}
            continue
        try:
            passes[name], found[name] = of_kernel(name, case, here, ask, exact)
        except Exception as error:
            traceback.print_exc()
            found[name] = {"failed": first_line(error)}
            here.free()
    del exact
    here.free()
    often = {name: max(1, min(50, int(TURN / here.seconds(work)))) for name, work in passes.items()}
    work = {name: lambda name=name, once=once: here.seconds(once, often[name]) for name, once in passes.items()}
    taken = measure.turns(work, here.n_turns)
    for name, each in taken.items():
        found[name]["both_ms"] = round(1e3 * statistics.median(each), 4)
    print(f"{case.name}: {shortly(found)}", flush=True)
    able = [name for name in ("flex", "blocked") if name in passes]
    if case.beside not in passes or not able:
        raise RuntimeError(f"{case.name}: no kernels to compare: {found}")
    best = min(able, key=lambda name: found[name]["both_ms"])
    ratio = measure.speed_ratio(taken, best, case.beside)
    late = "skipped" in found.get("flex", {})
    name, least = f"{case.name}, x {case.beside}{', without flex' * late}", 0.0 if late else case.least
    row = measure.row(name, ratio, least=least, best=best, kernels=found)
    row["passed"] = row["passed"] and found[best].get("agrees", False)
    return row


def of_kernel(
    name: str, case: Case, here: Here, ask: Asked, exact: tuple[Tensor, ...]
) -> tuple[Callable[[], object], dict[str, Any]]:
    """(both passes, how long the plan and the forward pass take, how far both are from the exact ones)."""
    kernel, start = kernel_of(name), time.perf_counter()
    seen = prepared(name, case, here)
    here.wait()
    first = time.perf_counter() - start
    backward = name != "flex" or here.cuda  # which PyTorch has no backward pass for on a CPU

    def forward() -> Tensor:
        return ask.forward(kernel, seen)

    still = ask._replace(inputs=[x.detach() for x in ask.inputs])

    def alone() -> Tensor:
        return still.forward(kernel, seen)

    def both() -> object:
        return ask.both(kernel, seen)

    start = time.perf_counter()
    got = ask.both(kernel, seen) if backward else (alone(),)
    here.wait()
    report: dict[str, Any] = {"first_call_s": round(time.perf_counter() - start, 2)}
    if name != "full causal":
        away = differs(got, exact)
        agrees = away[0] < MOST_DIFFERENT and all(each < MOST_OF_GRADIENTS for each in away[1:])
        report |= {"differs": away, "agrees": agrees}
    del got
    again = here.seconds(lambda: prepared(name, case, here))
    report |= {"first_prepare_ms": round(1e3 * first, 3), "prepare_ms": round(1e3 * again, 3)}
    once = forward if backward else alone
    once()
    each = [here.seconds(once, max(1, min(50, int(TURN / here.seconds(once))))) for _ in range(here.n_turns)]
    report["forward_ms"] = round(1e3 * statistics.median(each), 4)
    return both if backward else alone, report


def shortly(found: dict[str, Any]) -> str:
    """A case's times in a line: both passes, forward, plan, in milliseconds."""
    said = []
    for name, report in found.items():
        if "both_ms" not in report:
            said.append(f"{name} {next(iter(report.items()))}")
            continue
        times = " / ".join(f"{report[what]:.3g}" for what in ("both_ms", "forward_ms", "prepare_ms"))
        said.append(f"{name} {times} ms" + ("" if report.get("agrees", True) else f" DIFFERS {report['differs']}"))
    return "; ".join(said)


def kernels(here: Here, notes: dict[str, Any]) -> Iterator[Row]:
    """A row a case; `notes` takes the table of all times."""
    yield from each_of(cases(here), here, notes)
    print(f"\n{'both passes, ms':34}" + "".join(f"{name:>13}" for name in ("sdpa", "eager", "flex", "blocked")))
    for case, found in notes["table"].items():
        times = (found.get(name, {}).get("both_ms") for name in ("sdpa", "eager", "flex", "blocked"))
        print(f"{case:34}" + "".join(f"{'-' if each is None else format(each, '.3f'):>13}" for each in times))


def short_lengths(here: Here, notes: dict[str, Any]) -> Iterator[Row]:
    """Plain causal attention, which PyTorch's operator and flex both compute by blocks."""
    small = 8 if here.tiny else 1
    found = [
        Case(
            f"causal at {length:,}, {BATCH} rows",
            Causal(),
            blocked.tokens("", length // small).each(lambda fact: fact.to(here.device)),
            ("sdpa", "flex"),
            "sdpa",
            batch=BATCH,
        )
        for length in SHORT
    ]
    yield from each_of(found, here, notes)


def one_vector(here: Here, notes: dict[str, Any]) -> Iterator[Row]:
    """Products with one vector in bfloat16, by the operator of compiled steps and by the library; as a graph replays them."""
    if not here.cuda:
        notes["skipped"] = "the operator is a GPU's"
        return
    from anyformer.layers.vectors import vector_products

    for n, width in ((512, 2048), (3072, 2048), (2048, 2048), (2048, 8192), (16_384, 2048), (128_256, 2048)):
        many = max(2, min(20, int(2e8 / (2 * n * width))))  # more together than a cache holds
        matrices = [torch.randn(n, width, device=here.device, dtype=torch.bfloat16) for _ in range(many)]
        x = torch.randn(width, device=here.device, dtype=torch.bfloat16)
        work = {
            "own": lambda i, m=matrices, x=x: vector_products(x, [m[i % len(m)]]),
            "library": lambda i, m=matrices, x=x: torch.nn.functional.linear(x[None], m[i % len(m)]),
        }
        replays = {name: replayed(each, 20) for name, each in work.items()}
        taken = measure.turns(
            {name: lambda each=each: here.seconds(each) / 20 for name, each in replays.items()}, here.n_turns
        )
        per_second = 2 * n * width / statistics.median(taken["own"])
        name = f"one vector, {n:,} x {width:,}, x library"
        yield measure.row(
            name, measure.speed_ratio(taken, "own", "library"), least=1.0, nbytes_per_second=round(per_second)
        )
        here.free()


def replayed(work: Callable[[int], object], times: int) -> Callable[[], None]:
    """A CUDA graph of so many calls."""
    for i in range(2):
        work(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(times):
            work(i)
    return graph.replay


def each_of(found: list[Case], here: Here, notes: dict[str, Any]) -> Iterator[Row]:
    """A row of each case that does not fail; those that do are named."""
    table = notes.setdefault("table", {})
    for case in found:
        if not here.left(3.0):
            notes.setdefault("skipped", []).append(case.name)
            continue
        try:
            yield of_case(case, here, table)
        except Exception as error:
            traceback.print_exc()
            notes.setdefault("failed", []).append({"name": case.name, "failed": first_line(error)})
        here.free()
