"""Metrics of a run, step by step, kept in memory and as JSON lines; a run that goes on writes no step twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anyformer.disk.atomic import replace_file
from anyformer.disk.run_layout import METRICS
from anyformer.errors import RunFailed


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One update; `tokens` (predicted), `flops` and `seconds` (of training alone) count from the run's start."""

    step: int
    tokens: int
    flops: float
    seconds: float
    loss: float  # plain cross-entropy, nats a token
    lr: float
    grad_norm: float  # before clipping
    tokens_per_second: float
    share_of_peak: float | None = None  # of the machine's measured matrix products
    router_loss: float | None = None  # the routers' losses, weighted; None without any, as the next without experts
    expert_load_max: float | None = None  # of the busiest expert, as a multiple of its layer's mean
    expert_load_entropy: float | None = None  # as a share of an even load's, the mean over layers
    expert_dropped: float | None = None  # share of choices that no expert had a place for
    parts: Mapping[str, float] | None = None  # as `loss`, of what else is predicted, by name; None: nothing


@dataclass(frozen=True, kw_only=True)
class ValidationMetrics:
    """One validation, on the `whole` text or a fixed sample."""

    step: int
    tokens: int
    flops: float
    seconds: float
    validation_loss: float  # nats a token
    whole: bool = False
    unigram_loss: float | None = None  # of predicting by the frequency of labels alone, on the whole text; else None


Metrics = StepMetrics | ValidationMetrics


class MetricsLog:
    """The metrics of a run so far; with a file, each is a line of it as soon as it is known."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.steps: list[StepMetrics] = []
        self.validations: list[ValidationMetrics] = []
        self._file: Any = None

    def open(self, last_step: int) -> None:
        """Keep what was written up to `last_step`, drop the rest, and write after it. Raises RunFailed."""
        if self.path is None:
            return
        try:
            kept = [entry for entry in _read(self.path) if entry.step <= last_step] if last_step else []
            replace_file(self.path, "".join(_line(entry) for entry in kept).encode())
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunFailed(f"cannot write {self.path}: {error.strerror or error}") from None
        for entry in kept:
            self._keep(entry)

    def add(self, entry: Metrics) -> None:
        """Keep and write one. Raises RunFailed where it can't be written."""
        self._keep(entry)
        if self._file is not None:
            try:
                self._file.write(_line(entry))
                self._file.flush()
            except OSError as error:
                raise RunFailed(
                    f"cannot write {self.path}: {error.strerror or error}; the last checkpoint is good"
                ) from None

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, entry: Metrics) -> None:
        if isinstance(entry, StepMetrics):
            self.steps.append(entry)
        else:
            self.validations.append(entry)


def read_metrics(path: str | Path) -> MetricsLog:
    """The metrics in a run's directory, or in its file of them."""
    path = Path(path)
    log = MetricsLog()
    for entry in _read(path / METRICS if path.is_dir() else path):
        log._keep(entry)
    return log


def _line(entry: Metrics) -> str:
    return json.dumps({name: value for name, value in asdict(entry).items() if value is not None}) + "\n"


def _read(path: Path) -> list[Metrics]:
    """The whole lines of a file; a run that was killed may have left half of one at the end."""
    if not path.exists():
        return []
    entries: list[Metrics] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
            entries.append((ValidationMetrics if "validation_loss" in fields else StepMetrics)(**fields))
        except (ValueError, TypeError):
            break
    return entries
