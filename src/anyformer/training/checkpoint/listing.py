"""The runs in a folder, each in one record, read without torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anyformer.disk.lock import is_held
from anyformer.disk.run_layout import CHECKPOINTS, LOCK, METRICS, checkpoints_in, is_run, step_and_again
from anyformer.disk.seal import latest, read_record, sealed
from anyformer.errors import CheckpointError, UsageError
from anyformer.training.checkpoint.metrics import check_metrics, read_metrics

log = logging.getLogger(__name__)

State = Literal["finished", "interrupted", "running", "damaged"]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run; None for what is not known yet. Losses are in nats a token."""

    name: str  # its path, from the folder that was listed
    architecture: str | None = None
    n_params: int | None = None
    step: int = 0
    steps: int | None = None
    train_loss: float | None = None
    validation_loss: float | None = None
    state: State
    date: str | None = None  # begun, UTC, ISO 8601


def list_runs(directory: str | Path) -> list[RunSummary]:
    """The runs in `directory`, however deep (but none inside a run), oldest first. Raises UsageError where there is none."""
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"there is no directory {directory}; give one in which `train` made runs")
    runs = [summary(path, path.relative_to(directory).as_posix()) for path in _found(directory)]
    return sorted(runs, key=lambda run: (run.date or "", run.name))


def summary(path: Path, name: str) -> RunSummary:
    """The record of the run in `path`; one with a file that is not what was written is called damaged, which is said.

    Of its checkpoints only the sizes are compared: a list of runs reads no weights.
    """
    try:
        record = read_record(sealed(path))
        if not is_held(path / LOCK) and (checkpoint := latest(path / CHECKPOINTS, only=(METRICS,))) is not None:
            check_metrics(path, checkpoint)
    except CheckpointError as error:
        log.warning("%s", error)
        return RunSummary(name=name, state="damaged")
    metrics = read_metrics(path)
    return RunSummary(
        name=name,
        architecture=record.get("architecture"),
        n_params=record.get("n_params"),
        step=metrics.steps[-1].step if metrics.steps else 0,
        steps=record.get("steps"),
        train_loss=metrics.steps[-1].loss if metrics.steps else None,
        validation_loss=metrics.validations[-1].validation_loss if metrics.validations else None,
        state=_state(path, record),
        date=record.get("date"),
    )


def _found(directory: Path) -> list[Path]:
    if is_run(directory):
        return [directory]
    inside = (path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [run for path in inside if not path.is_symlink() for run in _found(path)]


def _state(path: Path, record: dict[str, Any]) -> State:
    if is_held(path / LOCK):
        return "running"
    saved = [step_and_again(each) for each in checkpoints_in(path / CHECKPOINTS)]
    # After the last step there is a save, so that its being there says all were made.
    return "finished" if any(place and place[0] == record.get("steps", 0) for place in saved) else "interrupted"
