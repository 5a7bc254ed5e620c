"""How long training stands still for a checkpoint: in one process, and in two that share out the weights (fsdp).

    python -m benchmarks.saving [--quick] [--params 20] [--folder DIR]

Of one written behind the steps (`train --save async`) steps wait until it is begun, and an update until what it changes is
copied; of one written between two steps (`--save now`), until it is there. Seconds are the first process's, the median of the
turns, with those of a step and those until what is written behind the steps is there. Disk and memory of the machine decide.
"""

from __future__ import annotations

import json
import statistics
import subprocess
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
from benchmarks import measure

MOST = 0.05  # of the time that writing takes
Taken = dict[str, list[float]]


def measured(params: float, folder: Path, world: World, turns: int) -> Taken:
    """Seconds of every turn by what takes them; the first turn, in which memory is found, is left out."""
    model = build(resize(preset("llama2-7b").spec, n_params=int(params * 1e6), vocab_size=4096), 0)
    model = shard(model, torch.device("cpu"), world) if world.sharded else model
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 4096, (4, 128))
    checkpoints = Checkpoints(folder / "checkpoints", world=world)
    behind = Behind(Checkpoints(folder / "checkpoints", world=world.apart()).write)
    waited = 0.0

    def step() -> None:
        nonlocal waited
        model(ids).logits.square().mean().backward()
        waited += seconds(behind.taken)
        optimizer.step()
        optimizer.zero_grad()
        settle(model)

    step()
    taken: Taken = {"a step": [], "written now": [], "pause": [], "written behind": []}
    for number in range(turns + 1):
        taken["a step"].append(seconds(step))
        taken["written now"].append(
            seconds(lambda at=number: checkpoints.write(checkpoints.content(at, model, optimizer, {})))
        )
        world.meet()
        start, made, waited = time.perf_counter(), None, 0.0
        begun = seconds(lambda at=100 + number: behind.start(checkpoints.content(at, model, optimizer, {})))
        while world.largest((made := made or behind.done()) is None):  # as many steps in all processes
            step()
        taken["written behind"].append(time.perf_counter() - start)
        taken["pause"].append(begun + waited)
    behind.close()
    return {name: each[1:] for name, each in taken.items()}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = measure.options(__doc__ or "")
    parser.add_argument("--params", type=float, default=20, help="millions")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; its disk is measured")
    parser.add_argument("--processes", type=int, help="measure in so many, and print the seconds")
    given = parser.parse_args()
    if given.processes and given.processes > 1 and not started():
        sys.exit(launch(given.processes, ["-m", "benchmarks.saving", *sys.argv[1:]]))
    if given.processes:
        mesh = f"fsdp={given.processes}" if given.processes > 1 else None
        with joined(mesh) as world, tempfile.TemporaryDirectory(dir=given.folder) as folder:
            taken = measured(given.params, Path(world.told(folder)), world, 5 if given.quick else 20)
            world.meet()  # before the folder goes
            if world.leads:
                print(json.dumps(taken), flush=True)
        return
    rows = []
    for processes in (1, 2):
        command = [sys.executable, "-m", "benchmarks.saving", *sys.argv[1:], "--processes", str(processes)]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        taken = json.loads(found.splitlines()[-1])
        middle = {name: statistics.median(each) for name, each in taken.items()}
        name = "pause of a checkpoint written behind, share of writing it now, processes:"
        share = middle["pause"] / middle["written now"]
        rows.append(measure.row(f"{name} {processes}", share, most=MOST, seconds=measure.rounded(taken)))
    measure.record("saving", given.out, rows, {"params": given.params * 1e6})


if __name__ == "__main__":
    main()
