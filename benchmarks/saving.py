"""How long training stands still for a checkpoint: written between two steps, and behind them (`train --save async`).

    python -m benchmarks.saving [--params 20] [--folder DIR]

Seconds, the median of the turns: of a step; of a checkpoint written between two; of taking the copy that is written behind
the steps, which is all that they wait for, the first time (memory is found for it) and from then on; until that is written.
"""

from __future__ import annotations

import argparse
import statistics
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

TURNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=float, default=20, help="millions")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; its disk is measured")
    given = parser.parse_args()
    model = build(resize(preset("llama2-7b").spec, n_params=int(given.params * 1e6), vocab_size=4096), 0)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 4096, (4, 128))

    def step() -> None:
        model(ids).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoints")
        behind = Behind(checkpoints.write)
        steps, between, pauses, written = [], [], [], []
        for number in range(TURNS):
            steps.append(_seconds(step))
            between.append(_seconds(lambda at=number: checkpoints.save(at, model, optimizer, {})))
            start = time.perf_counter()
            pauses.append(_seconds(lambda at=100 + number: behind.start(checkpoints.content(at, model, optimizer, {}))))
            while behind.done() is None:
                step()
            written.append(time.perf_counter() - start)
        behind.close()
        (file,) = list(checkpoints.directory.glob("step-*0104"))
        nbytes = sum(path.stat().st_size for path in file.iterdir())
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
