"""Checkpoints: directories that appear whole, in one rename, are read only as they were written, and hold no pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from anyformer.disk import atomic
from anyformer.disk.run_layout import (
    MANIFEST,
    MOMENTS,
    RANDOM,
    RECORD,
    STATE,
    WEIGHTS,
    checkpoint_name,
    checkpoints_in,
    is_complete,
    measure,
    step_and_again,
)
from anyformer.disk.seal import latest, read_manifest, sealed, sealing
from anyformer.errors import CheckpointError, RunFailed
from anyformer.training.step.state import (
    check_model_tensors,
    model_tensors,
    optimizer_tensors,
    random_state,
    set_model_tensors,
    set_optimizer_tensors,
    set_random_state,
)

_OWN = (WEIGHTS, MOMENTS, RANDOM)
_ENDING = ".safetensors"


class Checkpoints:
    """The checkpoints of one run. Only the process that owns the run saves; anyone may read."""

    def __init__(self, directory: Path, keep_last: int = 2) -> None:
        """Keep the last `keep_last` and the best in the directory `checkpoints` of a run. Raises OSError."""
        if keep_last < 1:
            raise ValueError(f"keep_last={keep_last}: a run that keeps no checkpoint cannot go on; keep 1 or more")
        self.directory, self.keep_last = Path(directory), keep_last
        record = self.directory.parent / RECORD
        self._run = measure(record) if record.is_file() else None  # as it is now: edits are seen

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        state: dict[str, Any],
        metric: float | None = None,
        beside: Mapping[str, Mapping[str, Tensor]] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Save everything that `restore` gives back, then delete what is neither among the last nor the best.

        `state` is JSON; `metric` is a loss: the lowest one is the best. `beside` are further tensors by the name of what
        they are of ("companion"), a file each; `files` are others by name. Raises RunFailed, naming the file, the cause and
        the bytes needed, where it can't be written; nothing of it is left then, and the former checkpoints stand.
        """
        target = self._name(step)
        moments, optimizer_rest = optimizer_tensors(optimizer)
        random_tensors, random_rest = random_state()
        written = {WEIGHTS: model_tensors(model), MOMENTS: moments, RANDOM: random_tensors}
        written |= {name + _ENDING: dict(tensors) for name, tensors in (beside or {}).items()}
        rest = json.dumps({"state": state, "optimizer": optimizer_rest, "random": random_rest}, indent=1).encode()
        texts = {STATE: rest, **(files or {})}
        needed = sum(tensor.nbytes for tensors in written.values() for tensor in tensors.values())
        needed += sum(map(len, texts.values()))
        at = self.directory
        try:
            atomic.create_directories(self.directory)
            atomic.remove_leftovers(self.directory)
            with atomic.new_directory(target) as aside:
                for name, tensors in written.items():
                    at = target / name
                    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, aside / name)
                for name, content in texts.items():
                    atomic.write_file(aside / name, content)
                content = {"step": step, "metric": metric, "run": self._run}  # the least metric is best
                atomic.write_file(aside / MANIFEST, sealing(aside, content))
            self._prune(target)
        except (OSError, SafetensorError) as error:
            raise RunFailed(self._failure(target, at, needed, error)) from error
        return target

    def latest(self) -> Path | None:
        """The newest complete checkpoint, None where there is none; one without a manifest is passed over aloud.

        Raises CheckpointError if the newest complete one is damaged: going on from an older one is the user's choice.
        """
        path = latest(self.directory)
        if path is not None:
            read_manifest(path)
        return path

    def best(self) -> Path | None:
        """The complete checkpoint of the lowest metric, the earliest of equals; None where none has one."""
        ranked = [(metric, path) for path in checkpoints_in(self.directory) if (metric := _metric(path)) is not None]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None

    def restore(self, path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Bring model, optimiser and random numbers to what they were, bit for bit; return the state.

        Raises CheckpointError, before the model is changed, for one that is missing, damaged or of another model.
        """
        read_manifest(path)
        sealed(path)
        device = str(next(model.parameters()).device)
        weights = load_file(path / WEIGHTS, device=device)
        check_model_tensors(model, weights)
        data = json.loads((path / STATE).read_text(encoding="utf-8"))
        set_optimizer_tensors(optimizer, load_file(path / MOMENTS), data["optimizer"])
        set_model_tensors(model, weights)
        set_random_state(load_file(path / RANDOM), data["random"])
        return data["state"]

    def beside(self, path: Path) -> dict[str, dict[str, Tensor]]:
        """The further tensors of a checkpoint that `restore` has verified, on the CPU. Raises CheckpointError."""
        files = [path / name for name in read_manifest(path)["files"] if name.endswith(_ENDING)]
        return {file.stem: load_file(file) for file in files if file.name not in _OWN}

    def _name(self, step: int) -> Path:
        """Where to save a step: the same step saved before stands until the new one is complete."""
        places = map(step_and_again, checkpoints_in(self.directory))
        again = [place[1] + 1 for place in places if place and place[0] == step]
        return self.directory / checkpoint_name(step, max(again, default=0))

    def _prune(self, new: Path) -> None:
        complete = [path for path in checkpoints_in(self.directory) if is_complete(path)]
        latest = {step_of(path): path for path in complete}  # of each step, the one saved last
        kept = {new, self.best(), *list(latest.values())[-self.keep_last :]}
        for path in checkpoints_in(self.directory):
            if path not in kept or path != latest.get(step_of(path), path):
                atomic.remove_directory(path)

    def _failure(self, target: Path, at: Path, needed: int, error: Exception) -> str:
        named, cause = at.name, str(error)
        if isinstance(error, OSError) and error.strerror:
            named, cause = Path(error.filename or at).name, error.strerror
        former = next((path for path in reversed(checkpoints_in(self.directory)) if is_complete(path)), None)
        former_words = f"the last good checkpoint is {former}" if former else "there is no earlier checkpoint"
        return (
            f"cannot save the checkpoint {target}, which needs {needed:,} bytes: {named}: {cause}; {former_words}; "
            "make room or grant access, then start again"
        )


def step_of(path: Path) -> int:
    """The step after which a checkpoint was saved. Raises CheckpointError for a path that is none."""
    place = step_and_again(path)
    if place is None:
        raise CheckpointError(f"{path} is no checkpoint: those are directories called step-00000100")
    return place[0]


def _metric(path: Path) -> float | None:
    try:
        metric = read_manifest(path)["metric"]
    except CheckpointError:
        return None
    return metric if isinstance(metric, float | int) and not math.isnan(metric) else None
