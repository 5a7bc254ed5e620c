"""Seconds from typing `anyformer train` to its first step, by processes: reading, making and placing the model, meeting, a step.

    python -m benchmarks.starting [--quick]

By the clock, on a model of a million parameters and a text that is encoded already, of which a step takes a tenth of a
second. More processes than cores share them, and importing PyTorch is most of what each does.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import measure

PROCESSES = (1, 2, 4)
MOST = {1: 10.0, 2: 20.0, 4: 40.0}  # seconds
ASKED = "llama2 --params 1M --seq-len 64 --batch-tokens 2048 --tokens 2048 --device cpu --data"


def first_step(folder: Path, processes: int, text: Path) -> float:
    """Seconds until the run's metrics tell of a step."""
    out = folder / f"run-{time.monotonic_ns()}"
    shared = ["--nproc", str(processes), "--mesh", f"fsdp={processes}"] if processes > 1 else []
    command = [sys.executable, "-m", "anyformer", "train", *ASKED.split(), str(text), *shared, "--out", str(out)]
    given = {**os.environ, "OMP_NUM_THREADS": "1", "ANYFORMER_CACHE": str(folder / "cache")}
    start, metrics = time.perf_counter(), out / "metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=given) as run:
        while not (metrics.exists() and '"step"' in metrics.read_text(encoding="utf-8")):
            if run.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with status {run.returncode} before its first step")
            time.sleep(0.01)
        return time.perf_counter() - start


def main() -> None:
    options = measure.arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text("\n".join(f"line {i} of a text that is long enough to train on" for i in range(20_000)))
        work = {str(n): lambda n=n: first_step(folder, n, text) for n in PROCESSES}
        taken = measure.turns(work, 2 if options.quick else 7)
    rows = [
        measure.row(f"seconds to the first step, processes: {n}", statistics.median(taken[str(n)]), most=MOST[n])
        for n in PROCESSES
    ]
    measure.record("starting", options.out, rows, {"seconds": measure.rounded(taken), "mesh": "fsdp"})


if __name__ == "__main__":
    main()
