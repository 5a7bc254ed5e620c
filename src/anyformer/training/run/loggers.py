"""Loggers: a run's figures where other tools show them, each a callback; a run that goes on logs no step twice.

All is kept below `logs` in the run's directory. The packages are extras, imported when a run begins.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from anyformer.disk.atomic import replace_file
from anyformer.errors import UsageError, unknown
from anyformer.training.checkpoint.metrics import FURTHER, Metrics, StepMetrics, ValidationMetrics
from anyformer.training.run.plan import RunPlan
from anyformer.training.run.progress import Watcher

FOLDER = "logs"
PROJECT = "anyformer"  # what wandb and mlflow file runs under
BEFORE = {"parts": "loss", "right": "right"}  # what is written before the names of further predictions' figures


class Logger(Watcher):
    """A callback that hands figures by name to some tool; a subclass writes `open`, `write` and `close`."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        """`folder` is the run's own for logs, `name` what it is listed by, `settings` are told of it once."""
        super().__init__()
        self.folder, self.name, self.settings = folder, name, settings
        self.logged = 0  # the last step that the log has
        self._was_done = False

    def begin(self, plan: RunPlan) -> None:
        super().begin(plan)
        self._was_done = plan.done >= plan.steps
        self.folder.mkdir(parents=True, exist_ok=True)
        self.open(plan.done)

    def step(self, metrics: StepMetrics) -> None:
        if metrics.step > self.logged:
            self.write(metrics)

    def validation(self, metrics: ValidationMetrics) -> None:
        # A run that had ended is validated again when it is asked for once more.
        if metrics.step > self.logged or (metrics.step == self.logged and not self._was_done):
            self.write(metrics)

    def end(self) -> None:
        self.close()

    def open(self, done: int) -> None:
        """Go on after a step, of which the log may already hold more."""

    def write(self, metrics: Metrics) -> None:
        """Log the figures of a step, or of a validation after it."""

    def close(self) -> None:
        """End the log."""

    def kept(self, name: str) -> str:
        """What stands for this run elsewhere, the same whenever it goes on."""
        file = self.folder / name
        if not file.is_file():
            replace_file(file, secrets.token_hex(8).encode())
        return file.read_text(encoding="utf-8")


class CSV(Logger):
    """`metrics.csv`: a row for each step and each validation."""

    stream: TextIO | None = None
    columns: tuple[str, ...] = ()

    def open(self, done: int) -> None:
        """Keep the rows up to a step."""
        self.file = self.folder / "metrics.csv"
        rows: list[dict[str, str]] = []
        if self.file.is_file():
            with self.file.open(newline="", encoding="utf-8") as stream:
                reader = csv.DictReader(stream)
                whole = [row for row in reader if None not in row.values()]  # where no disk was full
                rows = [row for row in whole if int(row["step"]) <= done and row["whole"] != "True"]
                self.columns = tuple(reader.fieldnames or ())
        if rows:
            self._write_all(rows)

    def write(self, metrics: Metrics) -> None:
        """Append a row."""
        row = figures(metrics)
        if self.stream is None:
            known = [each.name for kind in (StepMetrics, ValidationMetrics) for each in fields(kind)]
            self.columns = tuple(dict.fromkeys([name for name in (*known, *row) if name not in FURTHER]))
            self._write_all([])
        assert self.stream is not None
        csv.DictWriter(self.stream, self.columns, extrasaction="ignore").writerow(row)
        self.stream.flush()

    def close(self) -> None:
        """Close the file."""
        if self.stream is not None:
            self.stream.close()

    def _write_all(self, rows: Sequence[Mapping[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self.file, text.getvalue().encode())
        self.stream = self.file.open("a", newline="", encoding="utf-8")


class TensorBoard(Logger):
    """Event files, of which a run that goes on takes back what lies beyond its checkpoint."""

    def open(self, done: int) -> None:
        """Begin an event file after a step."""
        from torch.utils.tensorboard import SummaryWriter

        self.logged = done
        self.writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=done + 1)

    def write(self, metrics: Metrics) -> None:
        """Log each figure as a scalar."""
        for name, value in figures(metrics).items():
            self.writer.add_scalar(name, value, metrics.step)

    def close(self) -> None:
        """Write what is still held."""
        self.writer.close()


class WandB(Logger):
    """A run of Weights & Biases, offline where WANDB_MODE says so."""

    def open(self, done: int) -> None:
        """Begin the run, or go on with it; steps that it has it takes no second time."""
        wandb = importlib.import_module("wandb")
        quiet = wandb.Settings(silent=True, console="off")
        self.logged = done
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self.name,
            id=self.kept("wandb-id"),
            resume="allow",
            dir=str(self.folder),
            config=dict(self.settings),
            settings=quiet,
        )

    def write(self, metrics: Metrics) -> None:
        """Log the figures of a step."""
        self.run.log(figures(metrics), step=metrics.step)

    def close(self) -> None:
        """End the run there."""
        self.run.finish()


class MLflow(Logger):
    """A run of MLflow: where MLFLOW_TRACKING_URI says, else in files of its own."""

    def open(self, done: int) -> None:
        """Begin the run, or go on with it after the last step that it has."""
        if "MLFLOW_TRACKING_URI" not in os.environ:
            # It is being given up, and nothing else needs no server.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        client = importlib.import_module("mlflow.tracking").MlflowClient
        self.client = client(os.environ.get("MLFLOW_TRACKING_URI") or (self.folder / "mlflow").absolute().as_uri())
        file = self.folder / "mlflow-id"
        if file.is_file():
            self.run_id = file.read_text(encoding="utf-8")
            history = self.client.get_metric_history(self.run_id, "loss")
            self.logged = max((entry.step for entry in history), default=0)
            return
        found = self.client.get_experiment_by_name(PROJECT)
        place = self.client.create_experiment(PROJECT) if found is None else found.experiment_id
        self.run_id = self.client.create_run(place, run_name=self.name).info.run_id
        for name, value in self.settings.items():
            self.client.log_param(self.run_id, name, value)
        replace_file(file, self.run_id.encode())

    def write(self, metrics: Metrics) -> None:
        """Log each figure."""
        for name, value in figures(metrics).items():
            self.client.log_metric(self.run_id, name, float(value), step=metrics.step)

    def close(self) -> None:
        """End the run there."""
        self.client.set_terminated(self.run_id)


LOGGERS: Mapping[str, tuple[type[Logger], str | None]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WandB, "wandb"),
    "mlflow": (MLflow, "mlflow"),
    "csv": (CSV, None),
}


def figures(metrics: Metrics) -> dict[str, float]:
    """The figures of a step or a validation by name, of further predictions loss/NAME and right/NAME; the unknown is left out."""
    known = {each.name: getattr(metrics, each.name) for each in fields(metrics) if each.name not in FURTHER}
    for field, before in BEFORE.items():
        known |= {f"{before}/{name}": value for name, value in (getattr(metrics, field, None) or {}).items()}
    return {name: value for name, value in known.items() if value is not None}


def loggers(names: Sequence[str], out: Path | None, name: str, settings: Mapping[str, Any]) -> list[Logger]:
    """The loggers of a run by name, each once. Raises UsageError for one that is unknown or missing, and without a directory."""
    found = []
    for each in dict.fromkeys(names):
        if each not in LOGGERS:
            raise UsageError(unknown("--log", each, LOGGERS))
        if out is None:
            raise UsageError(f"--log {each}: logs lie in a run's directory; name one with --out")
        kind, package = LOGGERS[each]
        if package is not None and importlib.util.find_spec(package) is None:
            raise UsageError(f"--log {each}: the package is missing; pip install 'anyformer[{each}]'")
        found.append(kind(out / FOLDER, name, settings))
    return found
