"""How a run lies on disk: the names of its files, its checkpoints by step. Runs are written by `training`, read by `hub` too."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

# Of a run: what ran, by what recipe, on what, how far, and who owns it.
RECORD, SPEC, RECIPE, METRICS = "run.json", "spec.yaml", "recipe.yaml", "metrics.jsonl"
LOCK, TOKENIZER = "lock", "tokenizer"
CHECKPOINTS = "checkpoints"
BASE = "base"  # the weights that an adapter is put on, as long as it is trained
LABELS = "labels.json"  # the classes that its head tells apart, if it does
# What was trained beside the model, if anything was; its tensors in a checkpoint are called so too.
AUXILIARY, AUXILIARY_SPEC, AUXILIARY_WEIGHTS = "companion", "companion.yaml", "companion.safetensors"
# Of a checkpoint: a manifest, which is there when all else is.
MANIFEST, WEIGHTS, MOMENTS = "manifest.json", "model.safetensors", "optimizer.safetensors"
RANDOM, STATE = "random.safetensors", "state.json"
# Of one whose run trains an adapter, in the place of its weights: PEFT's names.
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
# Of one whose weights the processes of a run share, folders of each process's parts in the place of these files.
MODEL_PARTS, MOMENT_PARTS, AUXILIARY_PARTS = "model", "optimizer", AUXILIARY

_STEP = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
_CHUNK_NBYTES = 1 << 22


def is_run(path: Path) -> bool:
    """Whether a directory holds a run of ours, of any state, be its record there or lost."""
    return (path / RECORD).is_file() or any(map(is_complete, checkpoints_in(path / CHECKPOINTS)))


def is_checkpoint(path: Path) -> bool:
    """Whether a directory is a checkpoint of ours, complete or not, in its run or moved away from it."""
    if step_and_again(path) is None:
        return False
    run = run_of(path)
    return is_complete(path) or (run is not None and is_run(run))


def run_of(checkpoint: Path) -> Path | None:
    """The run that a checkpoint's directory belongs to; None for any other directory."""
    place = checkpoint.absolute().parent
    if place.name != CHECKPOINTS:
        return None
    return place.parent if checkpoint.parent == Path() else checkpoint.parent.parent


def checkpoint_name(step: int, again: int = 0) -> str:
    """The name of a checkpoint, such as step-00000100; .1: the same step saved `again`, which does away with the first."""
    return f"step-{step:08d}" + (f".{again}" if again else "")


def step_and_again(checkpoint: Path) -> tuple[int, int] | None:
    """(the step after which it was saved, how often that step had been saved before); None for what is no checkpoint."""
    match = _STEP.fullmatch(checkpoint.name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints in a run's directory of them, complete or not, oldest first."""
    found = [(place, path) for path in directory.glob("step-*") if (place := step_and_again(path)) is not None]
    return [path for _, path in sorted(found)]


def is_complete(checkpoint: Path) -> bool:
    """Whether all of a checkpoint was written."""
    return (checkpoint / MANIFEST).is_file()


def measure(path: Path) -> dict[str, int | str]:
    """The `nbytes` and `crc32` of a file: a checksum that no accident passes and that is as fast as the disk."""
    crc, nbytes = 0, os.stat(path).st_size
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_NBYTES):
            crc = zlib.crc32(chunk, crc)
    return {"nbytes": nbytes, "crc32": f"{crc:08x}"}
