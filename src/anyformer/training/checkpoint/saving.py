"""Where a run is kept: its directory, its checkpoints, and what of it is restored; without a directory, nothing is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from anyformer.disk import atomic
from anyformer.disk.run_layout import AUXILIARY_SPEC, CHECKPOINTS, METRICS, TOKENIZER
from anyformer.errors import RunFailed
from anyformer.hub.labels import LABELS, labels_json, with_types
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec, dumps
from anyformer.training.checkpoint.checkpoints import Checkpoints
from anyformer.training.checkpoint.directory import RunDirectory
from anyformer.training.data.feed import Feed, TrainingData
from anyformer.training.step import Trainer

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class SavedCheckpoint:
    """How far a run is. Learning rate and dropout follow from the step; the order of the data is the feed's state."""

    step: int = 0
    tokens: int = 0  # predicted
    seconds: float = 0.0  # of training
    validation_loss: float | None = None  # of this very step, nats a token; None where there was no validation


@dataclass
class Saving:
    """The directory of a run while the run lasts; it is locked from entering to leaving."""

    out: Path | None
    spec: ModelSpec
    recipe: Recipe
    data: TrainingData
    init: Path | None
    keep_last: int
    name: str | None = None  # the run's architecture is listed by it
    auxiliary: ModelSpec | None = None  # what is trained beside the model
    checkpoints: Checkpoints | None = field(default=None, init=False)
    _run: RunDirectory | None = field(default=None, init=False)
    _last: Path | None = field(default=None, init=False)

    def __enter__(self) -> Saving:
        if self.out is not None:
            fingerprints = {"data": self.data.fingerprint}
            if self.data.tokenizer is not None:
                fingerprints["tokenizer"] = self.data.tokenizer.fingerprint
            if self.init is not None:
                fingerprints["init"] = str(self.init)
            extra = {"architecture": self.name} if self.name else {}
            files = {AUXILIARY_SPEC: dumps(self.auxiliary)} if self.auxiliary is not None else {}
            if self.data.labels:
                files[LABELS] = labels_json(self.data.labels)
            self._run = RunDirectory.create(self.out, self.spec, self.recipe, fingerprints, extra, files)
            # Each save first syncs the metrics that lead to it.
            self.checkpoints = Checkpoints(self.out / CHECKPOINTS, self.keep_last, relied_on=(self.out / METRICS,))
            try:
                self._keep_tokenizer(self.out / TOKENIZER)
            except BaseException:
                self._run.close()
                raise
        return self

    def __exit__(self, *raised: object) -> None:
        if self._run is not None:
            self._run.close()

    def _keep_tokenizer(self, directory: Path) -> None:
        if self.data.tokenizer is None or (directory / TOKENIZER_FILE).is_file():
            return
        try:
            with atomic.new_directory(directory) as aside:
                with_types(self.data.tokenizer, self.spec).save(aside)
        except OSError as error:
            raise RunFailed(f"cannot write the tokenizer to {directory}: {error.strerror or error}") from None

    def restore(self, trainer: Trainer, feed: Feed) -> SavedCheckpoint:
        """Bring all to where the last checkpoint left it; without one, leave it as it is."""
        self._last = self.checkpoints.latest() if self.checkpoints is not None else None
        if self.checkpoints is None or self._last is None:
            return SavedCheckpoint()
        state = self.checkpoints.restore(self._last, trainer.model, trainer.optimizer)
        trainer.restore_beside(self.checkpoints.beside(self._last))
        feed.restore(state["feed"])
        return SavedCheckpoint(**state["saved"])

    def save(self, saved: SavedCheckpoint, trainer: Trainer, feed: Feed) -> None:
        """Write a checkpoint. Raises RunFailed where it can't be; the former one stays good."""
        if self.checkpoints is not None:
            state: dict[str, Any] = {"saved": asdict(saved), "feed": dict(feed.state())}
            self._last = self.checkpoints.save(
                saved.step, trainer.model, trainer.optimizer, state, saved.validation_loss, trainer.beside()
            )

    def best(self) -> Path | None:
        """The checkpoint of the lowest validation loss; None where there is none."""
        return self.checkpoints.best() if self.checkpoints is not None else None

    def says(self) -> str:
        """Where the last good checkpoint is, in words."""
        if self.out is None:
            return "nothing is saved, as the run has no directory"
        return f"the last good checkpoint is {self._last}" if self._last else "there is no checkpoint yet"
