"""The tensors of a run that processes share, each process its part, by PyTorch's DCP in safetensors files: nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.hub.shards import ShardedWeights
from anyformer.hub.weights import DTYPES, WHOLE

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException


def write(directory: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Write this process's parts, with those of all others of the group, into a new folder. Raises OSError, on all processes.

    What each process has whole is written once.
    """
    import torch.distributed.checkpoint as dcp  # here, since no other run should wait for half a second
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(directory), save_distributed=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:
        raise _cause(error) from None


def read(directory: Path, into: Mapping[str, Tensor]) -> None:
    """Fill tensors, whole ones or parts, with the numbers that were saved under their names. Raises OSError."""
    if not dist.is_initialized():
        held = ShardedWeights(directory)
        for name, tensor in into.items():
            tensor.detach().copy_(held.read(name))
        return
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        dcp.load(dict(into), storage_reader=HuggingFaceStorageReader(str(directory)))
    except CheckpointException as error:
        raise _cause(error) from None


def outlines(directory: Path) -> dict[str, Tensor]:
    """What a folder holds: by name, a tensor of its shape and type without numbers. Raises CheckpointError."""
    held = ShardedWeights(directory)
    return {
        name: torch.empty(held.shape(name), dtype=(DTYPES | WHOLE)[held.stored(name)], device="meta")
        for name in held.listed()
    }


def _cause(error: CheckpointException) -> Exception:
    """What went wrong in the first process that failed: an error of the disk where it is one."""
    rank, (first, _) = min(error.failures.items())
    if isinstance(first, OSError):
        return type(first)(first.errno, f"{first.strerror or first} (rank {rank})", first.filename)
    said = str(first)
    if "No space left" in said or "os error" in said.lower():
        return OSError(f"{said.splitlines()[0]} (rank {rank})")
    return CheckpointError(f"rank {rank} cannot write or read its part: {type(first).__name__}: {said.splitlines()[0]}")
