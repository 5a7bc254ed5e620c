"""Saving: a Hugging Face directory where transformers has a class for the model, else ours; whole or not at all."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from anyformer.errors import CheckpointError, RunFailed, SpecError
from anyformer.families import FAMILIES
from anyformer.families.hf.mapping import fitting, theirs_of
from anyformer.hub.source import CONFIG, SPEC
from anyformer.hub.weights import FILE, INDEX
from anyformer.model import Transformer
from anyformer.spec import dumps
from anyformer.text import Tokenizer

SHARD_NBYTES = 5_000_000_000
UNFINISHED = ".part"
Form = Literal["hf", "anyformer"]


class Saved(NamedTuple):
    """What was written, and why it is no Hugging Face directory if it is none."""

    path: Path
    form: Form
    reason: str | None = None

    def __str__(self) -> str:
        kind = "a Hugging Face directory" if self.form == "hf" else "a directory of ours"
        return f"{self.path} is {kind}" + (f": {self.reason}" if self.reason else "")


def save(
    model: Transformer,
    path: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    form: Form | None = None,
    shard_nbytes: int = SHARD_NBYTES,
) -> Saved:
    """Write a model and its tokenizer to a new directory, in files of at most `shard_nbytes`, or one tensor.

    `form` None takes "hf" where a class of transformers computes the model, and says which field has none otherwise.
    Raises CheckpointError for a directory in use or a tokenizer with more tokens than the model, SpecError if `form` is
    "hf" and no class fits, RunFailed where writing fails; nothing half-written stays.
    """
    path = Path(path)
    _refuse_in_use(path)
    spec, weights = model.spec, dict(model.named_parameters())
    if tokenizer is not None and tokenizer.vocab_size > spec.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model only {spec.vocab_size:,}; "
            "give the tokenizer that it was trained with"
        )
    reason, family, config = None, None, {}
    if form != "anyformer":
        try:
            family, config = fitting(FAMILIES.values(), spec)
        except SpecError as error:
            if form == "hf":
                raise
            reason = str(error)
    aside = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    held = None
    try:
        _remove_leftovers(path)
        aside.mkdir(parents=True)
        held = _hold(aside)
        if family is None:
            (aside / SPEC).write_text(dumps(spec), encoding="utf-8")
            _write_weights(aside, ((name, weight.detach()) for name, weight in weights.items()), shard_nbytes)
        else:
            kind = reduce(torch.promote_types, {weight.dtype for weight in weights.values()})
            about = {"architectures": [family.architecture], "model_type": family.hf_type}
            tokens = _special_tokens(tokenizer)
            _write_json(aside / CONFIG, about | config | tokens | {"dtype": str(kind).removeprefix("torch.")})
            _write_json(aside / "generation_config.json", {"_from_model_config": True, **tokens})
            rows = (family.files or family.rows)(spec)
            _write_weights(aside, theirs_of(rows, lambda name: weights[name].detach()), shard_nbytes)
        if tokenizer is not None:
            tokenizer.save(aside)
        for file in aside.iterdir():
            file.chmod(0o666 & ~_umask())  # safetensors writes for the owner alone
            _sync(file)
        _sync(aside)
        os.replace(aside, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise RunFailed(f"could not write {path}: {error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if held is not None:
            os.close(held)
    return Saved(path, "hf" if family else "anyformer", reason)


def _refuse_in_use(path: Path) -> None:
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise CheckpointError(f"{path} exists already and is not empty; give a new directory")


def _remove_leftovers(path: Path) -> None:
    """Delete what processes killed while they saved to this path have left beside it: nobody holds it any more."""
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*{UNFINISHED}"):
        held = _hold(aside)
        if held is not None:
            shutil.rmtree(aside)
            os.close(held)


def _hold(directory: Path) -> int | None:
    """Return the lock on a directory, which ends with this process at the latest; None where there is none to be had."""
    try:
        import fcntl

        descriptor = os.open(directory, os.O_RDONLY)
    except (ImportError, OSError):
        return None  # Windows; or it is gone already
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is another's, or the file system knows no locks
        os.close(descriptor)
        return None
    return descriptor


def _special_tokens(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the ids that open and close a text; null, lest transformers takes its own."""
    opening, closing = (tokenizer.begin_of_text, tokenizer.end_of_text) if tokenizer else (None, None)
    return {"bos_token_id": opening, "eos_token_id": closing, "pad_token_id": None}


def _write_weights(directory: Path, tensors: Iterable[tuple[str, Tensor]], shard_nbytes: int) -> None:
    shards: list[tuple[Path, list[str]]] = []
    total = 0
    for shard in _shards(tensors, shard_nbytes):
        file = directory / f"model-{len(shards) + 1:05d}.safetensors"
        save_file(shard, str(file), metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in shard.values())
        shards.append((file, list(shard)))
    if len(shards) == 1:
        shards[0][0].rename(directory / FILE)
        return
    weight_map: dict[str, str] = {}
    for i, (file, names) in enumerate(shards):
        final = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        file.rename(directory / final)
        weight_map |= dict.fromkeys(names, final)
    _write_json(directory / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(tensors: Iterable[tuple[str, Tensor]], shard_nbytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if shard and sum(held.nbytes for held in shard.values()) + tensor.nbytes > shard_nbytes:
            yield shard
            shard = {}
        shard[name] = tensor.clone(memory_format=torch.contiguous_format) if _is_view(tensor) else tensor.contiguous()
    yield shard


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no directories
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_view(tensor: torch.Tensor) -> bool:
    """Return whether others lie in the same storage, as in a model that was laid out for decoding."""
    return tensor.untyped_storage().nbytes() != tensor.nbytes
