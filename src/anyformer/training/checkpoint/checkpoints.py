"""Checkpoints: directories that appear whole, in one rename, are read only as they were written, and hold no pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from anyformer.disk import atomic
from anyformer.disk.run_layout import (
    MANIFEST,
    MODEL_PARTS,
    MOMENT_PARTS,
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
from anyformer.errors import CheckpointError, DiskFailed
from anyformer.hub.shards import ShardedWeights
from anyformer.training.checkpoint import shards
from anyformer.training.cluster.world import ALONE, World
from anyformer.training.step.state import (
    Numbers,
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


@dataclass(frozen=True)
class CheckpointContent:
    """What a checkpoint will hold, of this process."""

    target: Path
    step: int
    metric: float | None
    written: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # by file and name
    shared: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # by folder and name, with other processes
    texts: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        every = (*self.written.values(), *self.shared.values())
        return sum(t.nbytes for tensors in every for t in tensors.values()) + sum(map(len, self.texts.values()))


class Checkpoints:
    """The checkpoints of one run. Only the process that owns the run saves, with those that share it; anyone may read."""

    def __init__(self, directory: Path, keep_last: int = 2, world: World = ALONE, weights: str = WEIGHTS) -> None:
        """Keep the last `keep_last` and the best in the directory `checkpoints` of a run. Raises OSError.

        `weights` is the file of what is called the model here.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last={keep_last}: a run that keeps no checkpoint cannot go on; keep 1 or more")
        self.directory, self.keep_last, self.world, self.weights = Path(directory), keep_last, world, weights
        record = self.directory.parent / RECORD
        self._run = measure(record) if record.is_file() else None  # as it is now: edits are seen

    def content(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        state: dict[str, Any],
        metric: float | None = None,
        beside: Mapping[str, Mapping[str, Tensor]] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> CheckpointContent:
        """What `write` writes, and `restore` gives back: views of tensors, which later steps change.

        `state` is JSON; `metric` is a loss: the lowest one is the best. `beside` are further tensors by the name of what
        they are of ("companion"), a file each; `files` are others by name. All processes of the world call it.
        """
        target = self.world.once(lambda: self._name(step))
        if not (self.world.leads or self.world.sharded):
            return CheckpointContent(target, step, metric)
        numbers = Numbers.of(model, optimizer)
        moments, optimizer_rest = optimizer_tensors(optimizer, numbers)
        random_tensors, random_rest = random_state()
        random_file = {RANDOM: random_tensors} if self.world.leads else {}
        shared: dict[str, Mapping[str, Tensor]] = {}
        if self.world.sharded:
            scalars = {name: float(value) for name, value in moments.items() if not value.dim()}
            each = [scalars] if numbers is None else self.world.gathered(scalars)
            optimizer_rest["scalars"] = {name: value for found in each for name, value in found.items()}
            moments = {name: value for name, value in moments.items() if value.dim()}
            shared = {MODEL_PARTS: model_tensors(model), MOMENT_PARTS: moments, **(beside or {})}
            written: dict[str, dict[str, Tensor]] = random_file
        else:
            written = {self.weights: model_tensors(model), MOMENTS: moments, **random_file}
            written |= {name + _ENDING: dict(tensors) for name, tensors in (beside or {}).items()}
        rest = json.dumps({"state": state, "optimizer": optimizer_rest, "random": random_rest}, indent=1).encode()
        texts = {STATE: rest, **(files or {})} if self.world.leads else {}
        return CheckpointContent(target, step, metric, written, shared, texts)

    def write(self, content: CheckpointContent) -> Path:
        """Write what `content` gave, then delete what is neither among the last nor the best.

        All processes of the world call it; where they share the weights each writes its parts, else one writes all. Raises
        DiskFailed, naming the file, the cause and the bytes needed, where it can't be written; nothing of it is left then,
        and the former checkpoints stand.
        """
        target = at = content.target
        if not (self.world.leads or self.world.sharded):
            return target
        try:
            with self._aside(target) as aside:
                measured: dict[str, Any] = {}
                for name, tensors in content.shared.items():
                    at = target / name
                    shards.write(aside / name, tensors, self.world.group)
                    measured |= self._measured(aside, name)
                for name, tensors in content.written.items():
                    at = target / name
                    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, aside / name)
                for name, text in content.texts.items():
                    atomic.write_file(aside / name, text)
                if self.world.leads:
                    manifest = {"step": content.step, "metric": content.metric, "run": self._run}  # the least is best
                    atomic.write_file(aside / MANIFEST, sealing(aside, manifest, measured))
            if self.world.leads:
                self._prune(target)
        except (OSError, SafetensorError) as error:
            raise DiskFailed(self._failure(target, at, content.nbytes, error)) from error
        return target

    @contextmanager
    def _aside(self, target: Path) -> Iterator[Path]:
        """The directory that becomes `target` when all is in it; all processes that write there know its name."""
        if not self.world.leads:
            yield Path(self.world.told(""))
            return
        atomic.create_directories(self.directory)
        atomic.remove_leftovers(self.directory)
        with atomic.new_directory(target) as aside:
            if self.world.sharded:
                self.world.told(str(aside))
            yield aside

    def _measured(self, aside: Path, folder: str) -> dict[str, Any]:
        """What each file of a folder is, each process having read as many as any other."""
        names = sorted(path.relative_to(aside).as_posix() for path in (aside / folder).iterdir())
        mine = {name: measure(aside / name) for name in names[self.world.rank :: self.world.size]}
        return {name: found for each in self.world.gathered(mine) for name, found in each.items()}

    def latest(self) -> Path | None:
        """The newest complete checkpoint, None where there is none; one without a manifest is passed over aloud.

        Raises CheckpointError if the newest complete one is damaged: going on from an older one is the user's choice.
        """
        return latest(self.directory, only=())

    def best(self) -> Path | None:
        """The complete checkpoint of the lowest metric, the earliest of equals; None where none has one."""
        ranked = [(metric, path) for path in checkpoints_in(self.directory) if (metric := _metric(path)) is not None]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None

    def restore(self, path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Bring model, optimiser and random numbers to what they were, bit for bit; return the state.

        Raises CheckpointError, before the model is changed, for one that is missing, damaged or of another model.
        """
        files = sorted(read_manifest(path)["files"])
        sealed(path, files[self.world.rank :: self.world.size])
        self.world.meet()  # all have found it sound
        data = json.loads((path / STATE).read_text(encoding="utf-8"))
        scalars = {name: torch.tensor(value) for name, value in data["optimizer"].pop("scalars", {}).items()}
        numbers = Numbers.of(model, optimizer)
        if (path / MODEL_PARTS).is_dir():
            check_model_tensors(model, shards.outlines(path / MODEL_PARTS))
            moments = self._moments(path / MOMENT_PARTS, optimizer, numbers)
            set_optimizer_tensors(optimizer, moments | scalars, data["optimizer"], numbers)
            shards.read(path / MODEL_PARTS, model_tensors(model))
        else:
            weights = load_file(path / self.weights, device=str(next(model.parameters()).device))
            check_model_tensors(model, weights)
            set_optimizer_tensors(optimizer, load_file(path / MOMENTS), data["optimizer"], numbers)
            set_model_tensors(model, weights)
        set_random_state(load_file(path / RANDOM), data["random"])
        return data["state"]

    def _moments(self, folder: Path, optimizer: Optimizer, numbers: Numbers | None) -> dict[str, Tensor]:
        """What a folder of parts has of the optimiser, shared out as its parameters are."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        known = {i if numbers is None else numbers.own[i]: p for i, p in enumerate(parameters)}
        named = {name: (known.get(int(name.split(".")[0])), saved) for name, saved in shards.outlines(folder).items()}
        held = {
            name: torch.empty_like(p if p.shape == saved.shape else saved, device=p.device)
            for name, (p, saved) in named.items()
            if p is not None
        }
        shards.read(folder, held)
        return held

    def beside(self, path: Path) -> dict[str, dict[str, Tensor]]:
        """The further tensors of a checkpoint that `restore` has verified, on the CPU. Raises CheckpointError."""
        names = [Path(name) for name in read_manifest(path)["files"] if name.endswith(_ENDING)]
        found = {name.stem: load_file(path / name) for name in names if len(name.parts) == 1 and name.name not in _OWN}
        for folder in {name.parts[0] for name in names if len(name.parts) > 1} - {MODEL_PARTS, MOMENT_PARTS}:
            held = ShardedWeights(path / folder)
            found[folder] = {name: held.read(name) for name in held.listed()}
        return found

    def _name(self, step: int) -> Path:
        """Where to save a step: the same step saved before stands until the new one is complete."""
        places = map(step_and_again, checkpoints_in(self.directory))
        again = [place[1] + 1 for place in places if place and place[0] == step]
        return self.directory / checkpoint_name(step, max(again, default=0))

    def _prune(self, new: Path) -> None:
        complete = [path for path in checkpoints_in(self.directory) if is_complete(path)]
        by_step = {step_of(path): path for path in complete}  # of each step, the one saved last
        kept = {new, self.best(), *list(by_step.values())[-self.keep_last :]}
        for path in checkpoints_in(self.directory):
            if path not in kept or path != by_step.get(step_of(path), path):
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
