"""Where a run is kept: directory, metrics, checkpoints, and what of them is restored; without a directory, nothing is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from anyformer.disk import atomic
from anyformer.disk.lock import Lock
from anyformer.disk.run_layout import (
    ADAPTER,
    ADAPTER_CONFIG,
    AUXILIARY_SPEC,
    BASE,
    CHECKPOINTS,
    LABELS,
    METRICS,
    RECIPE,
    RECORD,
    TOKENIZER,
    WEIGHTS,
)
from anyformer.disk.seal import EXTENDED, read_record
from anyformer.errors import CheckpointError, RunFailed
from anyformer.hub.labels import labels_json, with_types
from anyformer.hub.weights import write_tensors
from anyformer.recipe import Recipe, extended, read
from anyformer.spec import dumps
from anyformer.training.checkpoint.behind import Behind
from anyformer.training.checkpoint.checkpoints import Checkpoints
from anyformer.training.checkpoint.directory import made, own, refuse
from anyformer.training.checkpoint.job import Job
from anyformer.training.checkpoint.metrics import MetricsLog
from anyformer.training.data.feed import Feed
from anyformer.training.step import Trainer
from anyformer.training.step.state import fingerprint_at, fingerprint_of

BASE_SHARD_NBYTES = 1 << 27  # of which one or two are in memory, unpacked of a base in few bits


@dataclass(frozen=True)
class SavedCheckpoint:
    """How far a run is. Learning rate and dropout follow from the step; the order of the data is the feed's state."""

    step: int = 0
    tokens: int = 0  # predicted
    seconds: float = 0.0  # of training
    validation_loss: float | None = None  # of this very step, nats a token; None where there was no validation


class Saving:
    """The directory of a run while the run lasts; it is locked from entering to leaving, by the process that leads the world."""

    def __init__(self, job: Job, trainer: Trainer, feed: Feed, *, keep_last: int, behind: bool) -> None:
        """Nothing is read or written yet. `behind`: checkpoints are written while training goes on."""
        self.job, self.trainer, self.feed, self.out, self.world = job, trainer, feed, job.out, trainer.world
        self.keep_last, self.behind = keep_last, behind
        self.log = MetricsLog(self.out / METRICS if self.out is not None and self.world.leads else None)
        self.checkpoints: Checkpoints | None = None
        self._behind: Behind | None = None
        self._lock: Lock | None = None
        self._last: Path | None = None
        self._begun_from = ""  # --init, when the run was begun
        self._metrics: bytes | None = None  # up to the restored checkpoint, as that holds them

    def __enter__(self) -> Saving:
        if self.out is None:
            return self
        if self.world.leads:
            job = self.job
            self._lock = own(self.out, job.spec, job.recipe, self._fingerprints(), job.name, self._fill)
        try:
            self.world.meet()  # the directory is there
            held = WEIGHTS
            if self.trainer.adapter is not None:
                held, self._begun_from = ADAPTER, read_record(self.out)["fingerprints"]["init"]
            self.checkpoints = writer = Checkpoints(self.out / CHECKPOINTS, self.keep_last, self.world, held)
            if self.behind and self.world.sharded:  # all write, and speak of it while steps speak
                writer = Checkpoints(self.out / CHECKPOINTS, self.keep_last, self.world.apart(), held)
            if self.behind and (self.world.sharded or self.world.leads):
                self._behind = Behind(writer.write)
                self.trainer.before_change = self._behind.taken
        except BaseException as error:
            if self._lock is not None:
                self._lock.release()
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(f"cannot read {self.out / RECORD}: {error.strerror or error}") from None
        return self

    def __exit__(self, *raised: object) -> None:
        if self._behind is not None:
            self._behind.close()
        if self._lock is not None:
            self._lock.release()

    def _fingerprints(self) -> dict[str, str]:
        """Of what the run reads."""
        found = {"data": self.job.data.fingerprint}
        if self.trainer.teacher is not None:
            found["teacher"] = fingerprint_of(self.trainer.teacher.model)
        found |= {f"judge {path}": fingerprint_at(path) for path in self.trainer.objective.judges}
        if self.job.data.tokenizer is not None:
            found["tokenizer"] = self.job.data.tokenizer.fingerprint
        return found if self.job.init is None else found | {"init": str(self.job.init)}

    def foreseen(self) -> SavedCheckpoint:
        """How far the run is by its directory, which is neither locked nor changed. Raises what entering does."""
        out, job = self.out, self.job
        if out is None:
            return SavedCheckpoint()

        def steps() -> int:
            refuse(out, job.spec, job.recipe, self._fingerprints())
            return made(out)

        return SavedCheckpoint(self.world.once(steps))

    def _fill(self, directory: Path) -> None:
        """Write what a run keeps beside its specification and recipe. Raises OSError."""
        data, adapter = self.job.data, self.trainer.adapter
        if self.trainer.auxiliary is not None:
            atomic.write_file(directory / AUXILIARY_SPEC, dumps(self.trainer.auxiliary.spec).encode())
        if data.labels:
            atomic.write_file(directory / LABELS, labels_json(data.labels).encode())
        if data.tokenizer is not None:
            with_types(data.tokenizer, self.job.spec).save(directory / TOKENIZER)
        if adapter is not None:
            (directory / BASE).mkdir()
            try:
                write_tensors(directory / BASE, adapter.base_numbers(), BASE_SHARD_NBYTES)
            except SafetensorError as error:
                raise OSError(str(error)) from None

    def begun(self) -> Recipe:
        """The recipe that the run was begun with: of fewer tokens, where it went on beyond its end since."""
        return self.job.recipe if self.out is None else read(self.out / RECIPE)

    def former(self) -> Recipe | None:
        """The recipe that the run had before it goes on beyond its end; None of a run that never does, or is not saved."""
        if self.out is None or not (self.out / RECORD).is_file():
            return None
        record = read_record(self.out)
        if (begun := extended(read(self.out / RECIPE), record)).tokens < self.job.recipe.tokens:
            return begun
        times = record.get(EXTENDED)
        return self.job.recipe.but(tokens=times[-1]["tokens"]) if times else None

    def restore(self) -> SavedCheckpoint:
        """Bring all to where the last checkpoint left it; without one, leave it as it is. Raises CheckpointError."""
        if self.checkpoints is None or self.out is None:
            return SavedCheckpoint()
        trainer = self.trainer
        self._last = self.world.once(self.checkpoints.latest)
        if self._last is None:
            return SavedCheckpoint()
        try:
            state = self.checkpoints.restore(self._last, trainer.kept, trainer.optimizer)
            trainer.restore_beside(self.checkpoints.beside(self._last))
            copy = self._last / METRICS
            self._metrics = copy.read_bytes() if copy.is_file() else None
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {self._last}: {error}; start again") from None
        self.feed.restore(state["feed"])
        return SavedCheckpoint(**state["saved"])

    def open(self, saved: SavedCheckpoint) -> None:
        """Bring the metrics to where the restored checkpoint left them. Raises RunFailed."""
        self.log.open(saved.step, self._metrics, self.says)

    def save(self, saved: SavedCheckpoint) -> None:
        """Write a checkpoint, or begin to. Raises RunFailed where it, or the one before, can't be; the former one stays good."""
        if self.checkpoints is None:
            return
        self.look(wait=True)
        trainer = self.trainer
        state: dict[str, Any] = {"saved": asdict(saved), "feed": dict(self.feed.state())}
        files = {METRICS: self.log.synced()}
        if trainer.adapter is not None:
            files[ADAPTER_CONFIG] = trainer.adapter.described(self._begun_from)
        trainer.settle()
        content = self.checkpoints.content(
            saved.step, trainer.kept, trainer.optimizer, state, saved.validation_loss, trainer.beside(), files
        )
        if self._behind is not None:
            self._behind.start(content)
        else:
            self._last = self.checkpoints.write(content)

    def look(self, *, wait: bool = False) -> None:
        """Take note of a checkpoint written while training went on. Raises RunFailed, with `wait`, where it couldn't be."""
        if self._behind is not None:
            self._last = self._behind.done(wait=wait) or self._last

    @property
    def failed(self) -> bool:
        """Whether this process knows that the last checkpoint couldn't be written while training went on: `save` raises it."""
        return self._behind is not None and self._behind.failed

    def best(self) -> Path | None:
        """The checkpoint of the lowest validation loss; None where there is none."""
        return self.checkpoints.best() if self.checkpoints is not None else None

    def says(self) -> str:
        """Where the last good checkpoint is, in words; of one that is being written, when it is."""
        with suppress(RunFailed):  # then it is the one before
            self.look(wait=True)
        if self.out is None:
            return "nothing is saved, as the run has no directory"
        return f"the last good checkpoint is {self._last}" if self._last else "there is no checkpoint yet"
