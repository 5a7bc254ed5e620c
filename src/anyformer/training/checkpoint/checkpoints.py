"""Checkpoints: directories that appear whole, in one rename, are read only as they were written, and hold no pickle."""

from __future__ import annotations

import json
import logging
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    STATE,
    WEIGHTS,
    checkpoint_name,
    checkpoints_in,
    is_complete,
    measure,
    step_and_again,
)
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

FORMAT = 1  # raised when what is written, or what it means, changes
_OWN = (WEIGHTS, MOMENTS, RANDOM)
_ENDING = ".safetensors"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint, with their checksums."""

    step: int
    metric: float | None  # lower is better
    files: dict[str, dict[str, Any]]  # name → nbytes, crc32


class Checkpoints:
    """The checkpoints of one run. Only the process that owns the run saves; anyone may read."""

    def __init__(self, directory: Path, keep_last: int = 2, relied_on: Sequence[Path] = ()) -> None:
        """Keep the last `keep_last` and the best; a save first syncs the files `relied_on`, such as the metrics."""
        if keep_last < 1:
            raise ValueError(f"keep_last={keep_last}: a run that keeps no checkpoint cannot go on; keep 1 or more")
        self.directory, self.keep_last, self.relied_on = Path(directory), keep_last, tuple(relied_on)
        self._warned: set[Path] = set()

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        state: dict[str, Any],
        metric: float | None = None,
        beside: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> Path:
        """Save everything that `restore` gives back, then delete what is neither among the last nor the best.

        `state` is JSON; `metric` is a loss: the lowest one is the best. `beside` are further tensors by the name of what
        they are of ("companion"), a file each. Raises RunFailed, naming the place and the cause, where it can't be
        written; nothing of it is left then, and the former checkpoints stand.
        """
        target = self._name(step)
        moments, optimizer_rest = optimizer_tensors(optimizer)
        random_tensors, random_rest = random_state()
        written = {WEIGHTS: model_tensors(model), MOMENTS: moments, RANDOM: random_tensors}
        written |= {name + _ENDING: dict(tensors) for name, tensors in (beside or {}).items()}
        rest = {"state": state, "optimizer": optimizer_rest, "random": random_rest}
        try:
            atomic.create_directories(self.directory)
            atomic.remove_leftovers(self.directory)
            for path in self.relied_on:
                if path.exists():
                    atomic.sync(path)
            with atomic.new_directory(target) as aside:
                for name, tensors in written.items():
                    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, aside / name)
                atomic.write_file(aside / STATE, _json(rest))
                files = {path.name: measure(path) for path in sorted(aside.iterdir())}
                content = {"format": FORMAT, "step": step, "metric": metric, "files": files}
                atomic.write_file(aside / MANIFEST, _json({**content, "crc32": _seal(content)}))
            self._prune(target)
        except (OSError, SafetensorError) as error:
            raise RunFailed(self._failure(target, error)) from error
        return target

    def latest(self) -> Path | None:
        """The newest complete checkpoint, None where there is none; one without a manifest is passed over aloud.

        Raises CheckpointError if the newest complete one is damaged: going on from an older one is the user's choice.
        """
        for path in reversed(checkpoints_in(self.directory)):
            if is_complete(path):
                read_manifest(path)
                return path
            if path not in self._warned:
                self._warned.add(path)
                log.warning("passing over the checkpoint %s: it is incomplete (it has no %s)", path, MANIFEST)
        return None

    def best(self) -> Path | None:
        """The complete checkpoint of the lowest metric, the earliest of equals; None where none has one."""
        ranked = [(metric, path) for path in checkpoints_in(self.directory) if (metric := _metric(path)) is not None]
        return min(ranked, key=lambda pair: pair[0])[1] if ranked else None

    def restore(self, path: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Bring model, optimiser and random numbers to what they were, bit for bit; return the state.

        Raises CheckpointError, before the model is changed, for one that is missing, damaged or of another model.
        """
        verify(path)
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
        files = [path / name for name in read_manifest(path).files if name.endswith(_ENDING)]
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

    def _failure(self, target: Path, error: Exception) -> str:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        former = next((path for path in reversed(checkpoints_in(self.directory)) if is_complete(path)), None)
        former_words = f"the last good checkpoint is {former}" if former else "there is no earlier checkpoint"
        return (
            f"cannot save the checkpoint {target}: {cause}; {former_words}; make room or grant access, then start again"
        )


def step_of(path: Path) -> int:
    """The step after which a checkpoint was saved. Raises CheckpointError for a path that is none."""
    place = step_and_again(path)
    if place is None:
        raise CheckpointError(f"{path} is no checkpoint: those are directories called step-00000100")
    return place[0]


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint, with the sizes of its files checked. Raises CheckpointError."""
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}; the others are in {path.parent}")
    file = path / MANIFEST
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise CheckpointError(f"{file} is in format {content['format']!r}; this version reads format {FORMAT}")
        seal = content.pop("crc32")
        if seal != _seal(content):
            raise ValueError("its checksum is another")
        manifest = Manifest(content["step"], content["metric"], content["files"])
    except FileNotFoundError:
        raise CheckpointError(f"the checkpoint {path} is incomplete: it has no {MANIFEST}{_remedy(path)}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged ({error}){_remedy(path)}") from None
    for name, saved in manifest.files.items():
        held = (path / name).stat().st_size if (path / name).is_file() else None
        if held is None:
            raise CheckpointError(f"{path / name} is missing{_remedy(path)}")
        if held != saved["nbytes"]:
            raise CheckpointError(
                f"{path / name} is truncated or overwritten: it has {held:,} bytes and was saved with "
                f"{saved['nbytes']:,}{_remedy(path)}"
            )
    return manifest


def verify(path: Path) -> Manifest:
    """Read every file of a checkpoint and compare its checksum. Raises CheckpointError naming the first wrong one."""
    manifest = read_manifest(path)
    for name, saved in manifest.files.items():
        if measure(path / name) != saved:
            raise CheckpointError(
                f"{path / name} is corrupted: its checksum is not the one it was saved with{_remedy(path)}"
            )
    return manifest


def _remedy(path: Path) -> str:
    return f"; restore it from a copy, or delete {path} to go on from the checkpoint before it"


def _metric(path: Path) -> float | None:
    try:
        metric = read_manifest(path).metric
    except CheckpointError:
        return None
    return metric if metric is not None and not math.isnan(metric) else None


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()  # ends in its last brace, so that one byte less is no JSON


def _seal(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
