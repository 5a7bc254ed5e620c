"""Tensors into safetensors files of a given size, one file in memory at a time, with the index that names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from anyformer.disk.atomic import new_directory
from anyformer.errors import CheckpointError, RunFailed
from anyformer.hub.weights import FILE, INDEX

SHARD_NBYTES = 5_000_000_000


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a directory that becomes `path`, complete, when the block ends. Raises RunFailed where it can't be written."""
    try:
        with new_directory(path) as aside:
            yield aside
    except (OSError, SafetensorError) as error:
        raise RunFailed(f"could not write {path}: {error}") from None


def refuse_in_use(path: Path) -> None:
    """Raise CheckpointError where there is something at a path already."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise CheckpointError(f"{path} exists already and is not empty; give a new directory")


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write settings as Hugging Face does."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def write_tensors(
    directory: Path,
    tensors: Iterable[tuple[str, Tensor]],
    shard_nbytes: int = SHARD_NBYTES,
    written: Callable[[], None] = lambda: None,
) -> None:
    """Write tensors in files of at most `shard_nbytes`, or one tensor; `written` is called after each file."""
    shards: list[tuple[Path, list[str]]] = []
    total = 0
    for shard in _shards(tensors, shard_nbytes):
        file = directory / f"model-{len(shards) + 1:05d}.safetensors"
        save_file(shard, str(file), metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in shard.values())
        shards.append((file, list(shard)))
        shard.clear()  # this loop still has it while the next is read
        written()
    if len(shards) == 1:
        shards[0][0].rename(directory / FILE)
        return
    weight_map: dict[str, str] = {}
    for i, (file, names) in enumerate(shards):
        final = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        file.rename(directory / final)
        weight_map |= dict.fromkeys(names, final)
    write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(tensors: Iterable[tuple[str, Tensor]], shard_nbytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    nbytes = 0
    for name, tensor in tensors:
        if shard and nbytes + tensor.nbytes > shard_nbytes:
            yield shard
            shard, nbytes = {}, 0
        shard[name] = tensor.clone(memory_format=torch.contiguous_format) if _is_view(tensor) else tensor.contiguous()
        nbytes += tensor.nbytes
    yield shard


def _is_view(tensor: Tensor) -> bool:
    """Whether others lie in the same storage, as in a model that was laid out for decoding."""
    return tensor.untyped_storage().nbytes() != tensor.nbytes
