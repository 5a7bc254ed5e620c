"""Runs that crash behind one of their steps, and are started again."""

from pathlib import Path
from typing import Any

import pytest

from anyformer.training.checkpoint.metrics import StepMetrics
from anyformer.training.run import RunOptions, TrainingResult, train
from anyformer.training.run.progress import Watcher


class Watching(Watcher):
    """Collects what a run says, and may act after a step."""

    def __init__(self, at: int = 0, act: Any = None) -> None:
        self.plan: Any = None
        self.losses: list[str] = []
        self.at, self.act = at, act

    def begin(self, plan: Any) -> None:
        self.plan = plan

    def step(self, metrics: StepMetrics) -> None:
        self.losses.append(metrics.loss.hex())
        if metrics.step == self.at:
            self.act()


class Crash(Exception):
    pass


def crash() -> None:
    raise Crash


def crashed(at: int, *what: Any, **how: Any) -> None:
    """Train until that step, behind which the run crashes."""
    with pytest.raises(Crash):
        train(*what, watcher=Watching(at, crash), **how)


def resumed(at: int, *what: Any, out: Path, options: RunOptions) -> TrainingResult:
    """What the run gives that crashed behind that step, and was started again."""
    crashed(at, *what, out=out, options=options)
    return train(*what, out=out, options=options)


def hexadecimal(result: TrainingResult) -> list[str]:
    return [m.loss.hex() for m in result.steps] + [m.validation_loss.hex() for m in result.validations]
