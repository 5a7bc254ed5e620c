"""How long training stands still for a checkpoint: written between two steps, and behind them (`train --save async`).

    python -m benchmarks.saving [--params 20] [--folder DIR] [--nproc 2]

Seconds, the median of the turns: of a step; of a checkpoint written between two; of taking the copy that is written behind
the steps, which is all that they wait for, the first time (memory is found for it) and from then on; until that is written.
With `--nproc` processes share out the weights (fsdp) and each writes its part; the figures are the first one's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from anyformer.families import preset
from anyformer.model import build
from anyformer.resizing import resize
from anyformer.training.checkpoint.behind import Behind
from anyformer.training.checkpoint.checkpoints import Checkpoints
from anyformer.training.cluster.joining import joined, started
from anyformer.training.cluster.launch import launch
from anyformer.training.cluster.sharding import settle, shard
from anyformer.training.cluster.world import World

TURNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=float, default=20, help="millions")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; its disk is measured")
    parser.add_argument("--nproc", type=int, default=1, help="processes that share out the weights")
    given = parser.parse_args()
    if given.nproc > 1 and not started():
        sys.exit(launch(given.nproc, ["-m", "benchmarks.saving", *sys.argv[1:]]))
    mesh = f"fsdp={given.nproc}" if given.nproc > 1 else None
    with joined(mesh) as world, tempfile.TemporaryDirectory(dir=given.folder) as folder:
        _measure(given.params, Path(world.told(folder)), world)
        world.meet()  # before the folder goes


def _measure(params: float, folder: Path, world: World) -> None:
    model = build(resize(preset("llama2-7b").spec, n_params=int(params * 1e6), vocab_size=4096), 0)
    model = shard(model, torch.device("cpu"), world) if world.sharded else model
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 4096, (4, 128))

    def step() -> None:
        model(ids).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        settle(model)

    step()
    checkpoints = Checkpoints(folder / "checkpoints", world=world)
    behind = Behind(Checkpoints(folder / "checkpoints", world=world.apart()).write)
    steps, between, pauses, written = [], [], [], []
    for number in range(TURNS):
        steps.append(_seconds(step))
        between.append(_seconds(lambda at=number: checkpoints.save(at, model, optimizer, {})))
        world.meet()
        start = time.perf_counter()
        pauses.append(_seconds(lambda at=100 + number: behind.start(checkpoints.content(at, model, optimizer, {}))))
        made = None
        while world.largest((made := made or behind.done()) is None):  # as many steps in all processes
            step()
        written.append(time.perf_counter() - start)
    behind.close()
    (file,) = list(checkpoints.directory.glob("step-*0104"))
    nbytes = sum(path.stat().st_size for path in file.rglob("*.*"))
    if not world.leads:
        return
    pause, median = statistics.median(pauses[1:]), statistics.median
    print(f"{nbytes / 1e6:,.0f} MB, a step {median(steps):.3f} s")
    print(f"between two steps {median(between):.3f} s")
    print(f"behind them: pause {pauses[0]:.3f} s at first, then {pause:.3f} s, {pause / median(between):.1%} of that")
    print(f"             written after {median(written):.3f} s, steps going on")


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
