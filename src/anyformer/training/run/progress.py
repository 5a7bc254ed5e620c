"""The live view: a bar and figures on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections import deque
from statistics import fmean
from typing import TextIO

from anyformer.screen import console
from anyformer.training.checkpoint.metrics import StepMetrics, ValidationMetrics
from anyformer.training.run.plan import RunPlan, duration

LINES = 20  # of a whole run, where there is no terminal
RECENT = 10  # steps whose mean loss is shown: single ones jump


class Watcher:
    """Whoever wants to know how a run goes: it has the figures, and this one keeps them to itself."""

    def __init__(self) -> None:
        self.steps = self._first = 0
        self._last: StepMetrics | None = None
        self._seconds_before = 0.0
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._validation: float | None = None

    def begin(self, plan: RunPlan) -> None:
        """Before the first step."""
        self.steps, self._first = plan.steps, plan.done

    def step(self, metrics: StepMetrics) -> None:
        """After each step."""
        if self._last is None:
            self._seconds_before = metrics.seconds - 1e-9
        self._last = metrics
        self._losses.append(metrics.loss)

    def validation(self, metrics: ValidationMetrics) -> None:
        """After each validation."""
        self._validation = metrics.validation_loss

    def end(self) -> None:
        """After the last step, or where the run failed."""

    def seconds_left(self) -> float | None:
        """The seconds that the steps to come will take; None before the second step."""
        if self._last is None or self._last.step <= self._first + 1:
            return None
        made = self._last.step - self._first - 1
        return (self._last.seconds - self._seconds_before) / made * (self.steps - self._last.step)

    def figures(self) -> list[str]:
        """Step, losses, tokens a second, share of the peak, experts' load and time left, as far as known."""
        if self._last is None:
            return []
        last, left = self._last, self.seconds_left()
        texts = [f"step {last.step:,}/{self.steps:,}", f"loss {fmean(self._losses):.3f}"]
        texts += [f"{name} {loss:.3f}" for name, loss in (last.parts or {}).items()]
        if self._validation is not None:
            texts.append(f"validation {self._validation:.3f}")
        texts.append(f"{last.tokens_per_second:,.0f} tokens/s")
        if last.share_of_peak is not None:
            texts.append(f"{last.share_of_peak:.0%} of peak")
        if last.expert_load_max is not None:
            texts.append(f"busiest expert {last.expert_load_max:.2f}x the mean")
        if last.expert_dropped:
            texts.append(f"{last.expert_dropped:.1%} dropped")
        if left is not None:
            texts.append(f"{duration(left)} left")
        return texts


class PlainLines(Watcher):
    """About `LINES` lines a run."""

    def __init__(self, stream: TextIO | None = None, title: str = "") -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._prefix = f"{title}: " if title else ""

    def begin(self, plan: RunPlan) -> None:
        super().begin(plan)
        for line in plan.lines():
            self._say(line)

    def step(self, metrics: StepMetrics) -> None:
        super().step(metrics)
        if metrics.step in (1, self.steps) or metrics.step % max(1, self.steps // LINES) == 0:
            self._say("  ".join(self.figures()))

    def _say(self, line: str) -> None:
        self._stream.write(f"{self._prefix}{line}\n")
        self._stream.flush()


class Bar(Watcher):
    """A progress bar with its figures, on a terminal."""

    def __init__(self, title: str = "") -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__()
        self._console = console(stderr=True)
        columns = (
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}", markup=False),
        )
        self._bar = Progress(*columns, console=self._console, refresh_per_second=4)
        self._task = self._bar.add_task(title or "train", total=None, figures="")

    def begin(self, plan: RunPlan) -> None:
        super().begin(plan)
        for line in plan.lines():
            self._console.print(line)
        self._bar.start()
        self._bar.update(self._task, total=plan.steps, completed=plan.done)

    def step(self, metrics: StepMetrics) -> None:
        super().step(metrics)
        self._bar.update(self._task, completed=metrics.step, figures="  ".join(self.figures()))

    def end(self) -> None:
        self._bar.stop()


def live_view(title: str = "") -> Watcher:
    """The view that suits where stderr goes."""
    return Bar(title) if sys.stderr.isatty() else PlainLines(title=title)
