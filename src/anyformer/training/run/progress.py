"""The live view: loss curves, a bar and figures on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections import deque
from statistics import fmean
from typing import TextIO

from anyformer.amounts import duration
from anyformer.screen import console
from anyformer.training.checkpoint.metrics import StepMetrics, ValidationMetrics
from anyformer.training.run.chart import LossCurves
from anyformer.training.run.plan import RunPlan

LINES = 20  # of a whole run, where there is no terminal
WIDTH = 80  # columns of curves, where there is no terminal
RECENT = 10  # steps whose mean loss is shown: single ones jump


class Watcher:
    """Whoever wants to know how a run goes: it has the figures, and this one keeps them to itself."""

    def __init__(self) -> None:
        self.steps = self._first = self._tokens = 0
        self._last: StepMetrics | None = None
        self._seconds_before = 0.0
        self._losses: deque[float] = deque(maxlen=RECENT)
        self._validation: float | None = None

    def begin(self, plan: RunPlan) -> None:
        """Before the first step."""
        self.steps, self._first, self._tokens = plan.steps, plan.done, plan.tokens

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

    def _read(self, metrics: StepMetrics) -> int:
        """The run's tokens, predicted or not, up to a step."""
        return metrics.step * self._tokens // self.steps

    def figures(self) -> list[str]:
        """Step, losses, tokens a second, share of the peak, experts' load and time left, as far as known."""
        if self._last is None:
            return []
        last, left = self._last, self.seconds_left()
        texts = [f"step {last.step:,}/{self.steps:,}", f"loss {fmean(self._losses):.3f}"]
        right = {name: f" ({share:.0%} right)" for name, share in (last.right or {}).items()}
        texts += [f"{name} {loss:.3f}{right.get(name, '')}" for name, loss in (last.parts or {}).items()]
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
    """About `LINES` lines a run; with `curves`, these as they are at its end."""

    def __init__(self, stream: TextIO | None = None, title: str = "", curves: LossCurves | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._title, self._curves = title, curves
        self._prefix = f"{title}: " if title else ""

    def begin(self, plan: RunPlan) -> None:
        super().begin(plan)
        if self._curves is not None:
            self._curves.begin(self._title, plan.tokens)
        for line in plan.lines():
            self._say(line)

    def step(self, metrics: StepMetrics) -> None:
        super().step(metrics)
        if metrics.step in (1, self.steps) or metrics.step % max(1, self.steps // LINES) == 0:
            self._say("  ".join(self.figures()))
        if self._curves is not None:
            self._curves.add(self._title, self._read(metrics), metrics.loss)

    def end(self) -> None:
        chart = None if self._curves is None else self._curves.drawn(WIDTH)
        if chart is not None:
            self._stream.write(f"\n{chart.plain}\n\n")
            self._stream.flush()

    def _say(self, line: str) -> None:
        self._stream.write(f"{self._prefix}{line}\n")
        self._stream.flush()


class Bar(Watcher):
    """A progress bar with its figures, on a terminal, below the curves of this run and of those before it."""

    def __init__(self, title: str, curves: LossCurves | None) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        super().__init__()
        self._title, self._curves = title or "train", LossCurves() if curves is None else curves
        self._console = console(stderr=True)
        columns = (
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
        )
        self._bar = Progress(*columns, console=self._console)
        self._task = self._bar.add_task(self._title, total=None)
        self._figures = Text()
        self._live = Live(Group(self._curves, self._bar, self._figures), console=self._console, refresh_per_second=4)

    def begin(self, plan: RunPlan) -> None:
        super().begin(plan)
        for line in plan.lines():
            self._console.print(line)
        self._curves.begin(self._title, plan.tokens)
        self._live.start()
        self._bar.update(self._task, total=plan.steps, completed=plan.done)

    def step(self, metrics: StepMetrics) -> None:
        super().step(metrics)
        self._curves.add(self._title, self._read(metrics), metrics.loss)
        self._bar.update(self._task, completed=metrics.step)
        self._figures.plain = "  ".join(self.figures())

    def end(self) -> None:
        self._live.stop()


def live_view(title: str = "", curves: LossCurves | None = None) -> Watcher:
    """The view that suits where stderr goes. Runs that are given the same `curves` are drawn into one chart."""
    return Bar(title, curves) if sys.stderr.isatty() else PlainLines(title=title, curves=curves)
