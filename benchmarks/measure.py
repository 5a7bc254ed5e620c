"""How the benchmarks time, and what a result records.

The machine may be shared, so both sides take turns (A B A B …) on one thread, the clock is the process's CPU time, and
a ratio is the median of the ratios of neighbouring turns.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from anyformer.measure import calibrate
from anyformer.version import __version__

RESULTS = Path(__file__).parent / "results"


def turns(work: Mapping[str, Callable[[], float]], n: int) -> dict[str, list[float]]:
    """Return what each function gave in `n` turns, after one that does not count."""
    for once in work.values():
        once()
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(n):
        for name, once in work.items():
            taken[name].append(once())
    return taken


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of this process that a call takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def training_step(model: nn.Module, loss_of: Callable[[], Tensor]) -> Callable[[], float]:
    """Return a step of AdamW on a loss, which it gives."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def growth_nbytes(step: Callable[[], Any]) -> int:
    """Return how far a step raises this process's resident set above where it started."""
    gc.collect()
    process = psutil.Process()
    start = highest = process.memory_info().rss
    running = threading.Event()
    running.set()

    def watch() -> None:
        nonlocal highest
        while running.is_set():
            highest = max(highest, process.memory_info().rss)
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    running.clear()
    watcher.join()
    return highest - start


def printed_elsewhere(module: str, *arguments: str, mapped: bool = True) -> Any:
    """Return what a process of its own prints as JSON, `python -m MODULE …`: how far one step of it raised its resident set, say.

    `mapped`: large blocks are mapped one by one there, so that what is freed goes back at once and the growth is the step's own.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"} if mapped else None
    command = [sys.executable, "-m", module, *arguments]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(found.stdout.splitlines()[-1])


def speed_ratio(taken: Mapping[str, list[float]], ours: str = "ours", theirs: str = "transformers") -> float:
    """Return how many times as fast ours is: the median over the turns."""
    return statistics.median(b / a for a, b in zip(taken[ours], taken[theirs], strict=True))


def options(description: str) -> argparse.ArgumentParser:
    """Return what reads the command line: --quick, --out, and what a benchmark adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few turns: minutes instead of half an hour")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the JSON result")
    return parser


def arguments(description: str) -> argparse.Namespace:
    """Return the command line's: --quick, --out."""
    return options(description).parse_args()


def record(name: str, out: Path, rows: list[dict[str, Any]], notes: Mapping[str, Any]) -> None:
    """Print the rows and write them with the date, the versions, the machine and the command."""
    import transformers

    machine = calibrate()
    result = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks.{name} {' '.join(sys.argv[1:])}".strip(),
        "versions": {
            "anyformer": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": sys.version.split()[0],
        },
        "machine": {
            "processor": machine.processor,
            "threads": machine.threads,
            "gemm_flops_per_second": {dtype: round(peak) for dtype, peak in machine.peak_flops_per_second.items()},
            "read_nbytes_per_second": round(machine.read_nbytes_per_second),
            "bfloat16": "native" if native_bfloat16() else "emulated: this processor has no bfloat16 arithmetic",
        },
        **notes,
        "rows": rows,
    }
    for row in rows:
        verdict = "ok" if row["passed"] else "MISSED"
        print(f"{row['name']:48} {row['value']:7.2f}  must be {row['bar']:9} {verdict}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


def row(name: str, value: float, least: float | None = None, most: float | None = None, **more: Any) -> dict[str, Any]:
    """Return one figure with its bar: at least, or at most."""
    passed = (least is None or value >= least) and (most is None or value <= most)
    bar = f">= {least:g}" if least is not None else f"<= {most:g}"
    return {"name": name, "value": round(value, 3), "bar": bar, "passed": passed, **more}


def rounded(taken: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return the seconds of each turn with the digits that mean something."""
    return {name: [float(f"{seconds:.4g}") for seconds in each] for name, each in taken.items()}


def native_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 itself."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
