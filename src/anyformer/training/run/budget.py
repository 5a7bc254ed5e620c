"""Budgets of time: the tokens that a run has time for, by a few steps that are timed on this machine and thrown away."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from anyformer.errors import UsageError
from anyformer.recipe import Recipe
from anyformer.training.checkpoint.job import Job
from anyformer.training.run.loop import Run
from anyformer.training.run.options import RunOptions
from anyformer.training.step.device import memory_told

TIMED = 4  # steps; the first, which warms up, does not count
FOR_STEPS = 0.85  # of the time; the rest is for validation and checkpoints


def seconds_a_step(job: Job, options: RunOptions) -> float:
    """The seconds of a step of this job on this machine, whatever else runs on it; nothing is saved. Raises what `Run` does."""
    run = Run(replace(job, out=None), replace(options, plan=False, peak=None))
    seconds = []
    for number in range(1, 1 + TIMED):
        batch = next(run.feed)
        start = time.perf_counter()
        with memory_told():
            run.trainer.step(number, batch)
        seconds.append(time.perf_counter() - start)
    return run.world.told(median(seconds[1:]))


def tokens_in(minutes: float, seconds: float, recipe: Recipe) -> int:
    """The tokens, of whole steps, for which a step of so many seconds leaves time.

    Raises UsageError where that is less than a step.
    """
    steps = int(60 * FOR_STEPS * minutes / seconds)
    if steps < 1:
        raise UsageError(
            f"--minutes {minutes:g}: a step takes {seconds:,.1f} s here; give more, or smaller steps (--batch-tokens) or a "
            "smaller model (--params)"
        )
    return steps * recipe.batch_tokens


def refuse_both(minutes: float | None, changes: Mapping[str, Any]) -> None:
    """Raise UsageError where tokens are given too, which say how long as well."""
    if minutes is not None and "tokens" in changes:
        raise UsageError("--minutes and --tokens both say how long to train; give one of them")
