"""The live view: lines without a terminal, a bar with one."""

import io
from dataclasses import replace

import pytest

from anyformer.training.checkpoint.metrics import StepMetrics, ValidationMetrics
from anyformer.training.run import progress as live
from anyformer.training.run.chart import COLUMNS, LossCurves
from anyformer.training.run.plan import RunPlan
from anyformer.training.run.progress import Bar, PlainLines, Watcher, live_view

PLAN = RunPlan(3_000_000, 400, 0, 819_200, 20e6, "cpu", "float32", 144_000_000, 300.0, 500_000_000, 3e11)


def step(number: int, loss: float = 5.0, share: float | None = 0.61) -> StepMetrics:
    seconds = 0.5 * number
    return StepMetrics(
        step=number,
        tokens=2048 * number,
        flops=1.0,
        seconds=seconds,
        loss=loss,
        lr=1e-3,
        grad_norm=1.0,
        tokens_per_second=4096.0,
        share_of_peak=share,
    )


def validation(number: int) -> ValidationMetrics:
    return ValidationMetrics(step=number, tokens=1, flops=1.0, seconds=1.0, validation_loss=4.25)


def test_plain_lines_are_few_and_say_all() -> None:
    stream = io.StringIO()
    view = PlainLines(stream, "llama2")
    view.begin(PLAN)
    for number in range(1, 401):
        view.step(step(number))
        if number == 200:
            view.validation(validation(200))
    view.end()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "llama2: 3.00M parameters, 400 steps, 819,200 tokens, 20 MFLOP a token, float32 on cpu"
    assert lines[1] == "llama2: needs about 5 min, 500 MB of memory, 144 MB of disk"
    assert 20 <= len(lines) <= 25
    assert "step 220/400  loss 5.000  validation 4.250  4,096 tokens/s  61% of peak  90 s left" in "\n".join(lines)
    assert "\x1b" not in stream.getvalue()


def test_the_loss_shown_is_a_mean_of_the_last_steps() -> None:
    progress = Watcher()
    progress.begin(PLAN)
    for number in range(1, 21):
        progress.step(step(number, loss=float(number)))
    assert "loss 15.500" in progress.figures()


def test_a_curve_is_as_wide_as_its_run() -> None:
    """Though but a sixth of the places of its text are predicted, as of masked words."""
    curves = LossCurves()
    view = PlainLines(io.StringIO(), "bert", curves)
    view.begin(PLAN)
    for number in range(1, 401):
        view.step(replace(step(number), tokens=300 * number))
    assert [point.column for point in curves._points["bert"]] == list(range(COLUMNS))


def test_time_left_counts_from_where_the_run_goes_on() -> None:
    progress = Watcher()
    progress.begin(RunPlan(1, 400, 300, 1, 1.0, "cpu", "float32", 0))
    progress.step(step(301))
    assert progress.seconds_left() is None
    progress.step(step(302))
    assert progress.seconds_left() == pytest.approx(49.0)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(live.sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    view = live_view("gpt2")
    assert isinstance(view, Bar)
    view.begin(PLAN)
    for number in range(1, 41):
        view.step(step(number))
    view.end()
    text = stream.getvalue()
    assert "gpt2" in text
    assert "step 40/400" in text
    assert "61% of peak" in text
    monkeypatch.setattr(stream, "isatty", lambda: False)
    assert isinstance(live_view(), PlainLines)
