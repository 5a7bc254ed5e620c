"""A small run in processes that torchrun starts, one of which fails on purpose: `python -m tests.training.cluster.faulty …`."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from anyformer.errors import AnyformerError
from anyformer.training.checkpoint.metrics import StepMetrics
from anyformer.training.cluster.joining import joined
from anyformer.training.cluster.world import World
from anyformer.training.run.progress import Watcher
from tests.training.cluster import runs
from tests.training.cluster.runs import ran

STEP_SECONDS = 0.05  # so that there is time to stop it
END_SECONDS = 0.5


class Failing(Watcher):
    """Does `what` in one rank after one step, in the first life of the processes."""

    def __init__(self, world: World, what: str, rank: int, step: int) -> None:
        super().__init__()
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        self.what, self.at = what, step if first and rank == world.rank else None

    def step(self, metrics: StepMetrics) -> None:
        time.sleep(STEP_SECONDS)
        if metrics.step != self.at:
            return
        match self.what:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(1000)
            case "raise":
                raise AnyformerError("this rank alone cannot go on")
            case "disk":  # a file may be this large here, and no larger
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            case "stop":  # as the launcher does it for all
                os.kill(os.getpid(), signal.SIGTERM)

    def end(self) -> None:
        """Takes its time, in which the launcher has long told it to leave."""
        time.sleep(END_SECONDS)


def differ(what: str) -> None:
    """Make of this process one of another version, or one that was given another text."""
    if what == "version":
        torch.__version__ = "0.0"
    elif what == "data":
        runs.killing.corpus = partial(_shifted, runs.killing.corpus)


def _shifted(corpus: Any, n: int, seed: int) -> Any:
    return corpus(n, seed + 1)


def main(out: str, mesh: str, limit: str, what: str, rank: str, step: str, save: Literal["now", "async"]) -> None:
    torch.set_num_threads(1)
    try:
        with joined(mesh, float(limit)) as world:
            if os.environ.get("TELL_PIDS"):
                Path(os.environ["TELL_PIDS"], str(world.rank)).write_text(json.dumps(os.getpid()))
            if int(rank) == world.rank:
                differ(what)
            ran(world, mesh, Path(out), watcher=Failing(world, what, int(rank), int(step)), save=save)
    except AnyformerError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
