"""Metrics of a run, step by step, kept in memory and as JSON lines; a run that goes on writes no step twice."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from anyformer.disk.atomic import replace_file, write_all
from anyformer.disk.run_layout import METRICS
from anyformer.errors import CheckpointError, DiskFailed

FURTHER = ("parts", "right", "answers")  # fields of metrics that are no figures, but hold some

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How far a run is; `tokens` (predicted), `flops` and `seconds` (of training alone) count from its start."""

    step: int
    tokens: int
    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepMetrics(Metrics):
    """One update."""

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
    # of those parts that count it, the share of labels that are the likeliest class
    right: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ValidationMetrics(Metrics):
    """One validation, on the `whole` text or a fixed sample."""

    validation_loss: float  # nats a token
    whole: bool = False
    unigram_loss: float | None = None  # of predicting by the frequency of labels alone, on the whole text; else None
    answers: Sequence[Mapping[str, Any]] | None = None  # a few that the model itself has written; None: it writes none


class MetricsLog:
    """The metrics of a run so far; with a file, each is a line of it as soon as it is known."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.steps: list[StepMetrics] = []
        self.validations: list[ValidationMetrics] = []
        self._lines: list[bytes] = []
        self._descriptor: int | None = None
        self._says = str

    def open(self, last_step: int, saved: bytes | None = None, says: Callable[[], str] = str) -> None:
        """Go on after `last_step`, whose checkpoint has `saved` so much: what the file holds beyond that is dropped.

        A file that does not begin so is moved aside and made anew, which is said. `says` tells of the last checkpoint.
        Raises DiskFailed.
        """
        self._says = says
        if self.path is None:
            return
        with self._failing(0):
            kept = self._kept(self.path, last_step, saved)
            replace_file(self.path, kept)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        for line in kept.splitlines(keepends=True):
            self._keep(_entry(line), line)

    def add(self, entry: Metrics) -> None:
        """Keep and write one. Raises DiskFailed where it can't be written."""
        line = json.dumps({name: value for name, value in asdict(entry).items() if value is not None}).encode() + b"\n"
        self._keep(entry, line)
        if self._descriptor is not None:
            with self._failing(len(line)):
                write_all(self._descriptor, line)

    def synced(self) -> bytes:
        """All lines, for a checkpoint to hold, once the disk has them. Raises DiskFailed."""
        if self._descriptor is not None:
            with self._failing(0):
                os.fsync(self._descriptor)
        return b"".join(self._lines)

    def close(self) -> None:
        """Close the file. Raises DiskFailed where the system says only now that it can't be written."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with self._failing(0):
                os.close(descriptor)

    def _keep(self, entry: Metrics, line: bytes) -> None:
        self._lines.append(line)
        if isinstance(entry, StepMetrics):
            self.steps.append(entry)
        elif isinstance(entry, ValidationMetrics):
            self.validations.append(entry)

    @contextmanager
    def _failing(self, needed: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            more = f", which needs {needed:,} bytes more" if needed else ""
            cause = f"cannot write {self.path}{more}: {error.strerror or error}"
            raise DiskFailed(f"{cause}; {self._says() or 'nothing was trained'}; make room, then start again") from None

    def _kept(self, path: Path, last_step: int, saved: bytes | None) -> bytes:
        """What of the file's lines stays."""
        try:
            held = path.read_bytes()
        except FileNotFoundError:
            held = None
        except OSError:
            held = b""
        if last_step == 0:
            return b""
        if saved is None:  # an older version's checkpoint: the file is all there is
            entries = [(line, entry) for line, entry in _read(held or b"") if entry.step <= last_step]
            whole = sum(isinstance(entry, StepMetrics) for _, entry in entries) == last_step
            saved, remedy = b"".join(line.rstrip() + b"\n" for line, _ in entries), "with what can be read of it"
        else:
            whole, remedy = held is not None and held.startswith(saved), "from the checkpoint"
        if not whole:
            aside = ""
            if held is not None:
                names = (f"{path.name}.damaged-{n}" for n in count(1))
                name = next(name for name in names if not path.with_name(name).exists())
                os.rename(path, path.with_name(name))
                aside = f"; it is kept as {name}"
            state = "missing" if held is None else "damaged or edited"
            log.warning("%s is %s: it is made anew %s of step %d%s", path, state, remedy, last_step, aside)
        return saved


def read_metrics(path: str | Path) -> MetricsLog:
    """The metrics in a run's directory, or in its file of them, up to the first line that can't be read."""
    path = Path(path)
    found = MetricsLog()
    file = path / METRICS if path.is_dir() else path
    for line, entry in _read(file.read_bytes() if file.exists() else b""):
        found._keep(entry, line)
    return found


def check_metrics(run: Path, checkpoint: Path) -> None:
    """Raise CheckpointError where a run's metrics do not begin as a sealed checkpoint has them."""
    file, copy = run / METRICS, checkpoint / METRICS
    if copy.is_file() and not (file.is_file() and file.read_bytes().startswith(copy.read_bytes())):
        raise CheckpointError(
            f"{file} is missing, damaged or edited: it is not as {copy} has it; start the run again, which makes it anew"
        )


def _entry(line: bytes) -> Metrics:
    """One line. Raises ValueError, TypeError, AttributeError for what is none."""
    fields = json.loads(line)
    if not all(isinstance(value, int | float) for name, value in fields.items() if name not in FURTHER):
        raise TypeError("a metric is a number")
    return (ValidationMetrics if "validation_loss" in fields else StepMetrics)(**fields)


def _read(content: bytes) -> Iterator[tuple[bytes, Metrics]]:
    """The whole lines of a file; a run that was killed may have left half of one at the end."""
    for line in content.splitlines(keepends=True):
        try:
            yield line, _entry(line)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return
