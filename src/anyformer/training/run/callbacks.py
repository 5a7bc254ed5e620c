"""Callbacks: whoever else wants to know how a run goes, and can neither end nor change it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

from anyformer.training.checkpoint.metrics import StepMetrics, ValidationMetrics
from anyformer.training.run.plan import RunPlan
from anyformer.training.run.progress import Watcher
from anyformer.training.step.state import random_state, set_random_state


class WithCallbacks(Watcher):
    """The run's own watcher, and callbacks: watchers too, of which one that fails is told of once and asked no more.

    What a callback draws at random and what it does to the figures it is given changes nothing of the run.
    """

    def __init__(self, watcher: Watcher, callbacks: Sequence[Watcher], say: Callable[[str], None]) -> None:
        super().__init__()
        self.watcher, self.callbacks, self._say = watcher, list(callbacks), say

    def begin(self, plan: RunPlan) -> None:
        self.watcher.begin(plan)
        self._each(lambda callback: partial(callback.begin, copy.deepcopy(plan)))

    def step(self, metrics: StepMetrics) -> None:
        self.watcher.step(metrics)
        self._each(lambda callback: partial(callback.step, copy.deepcopy(metrics)))

    def validation(self, metrics: ValidationMetrics) -> None:
        self.watcher.validation(metrics)
        self._each(lambda callback: partial(callback.validation, copy.deepcopy(metrics)))

    def end(self) -> None:
        self.watcher.end()
        self._each(lambda callback: callback.end)

    def _each(self, call: Callable[[Watcher], Callable[[], None]]) -> None:
        for callback in list(self.callbacks):
            state = random_state()
            try:
                call(callback)()
            except (Exception, SystemExit) as error:
                self.callbacks.remove(callback)
                what = " ".join(f"{type(error).__name__}: {error}".split())
                self._say(f"{type(callback).__name__} failed and is asked no more; the run goes on ({what})")
            finally:
                set_random_state(*state)
