"""Tensors in parts, as a run's processes wrote them by PyTorch's DCP: safetensors files whose headers say where parts begin."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.errors import CheckpointError
from anyformer.hub.weights import Weights, opened

_HEADER, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # torch.distributed.checkpoint's


class _Part(NamedTuple):
    file: Path
    begin: tuple[int, ...]
    shape: tuple[int, ...]


class ShardedWeights(Weights):
    """What a folder of parts holds. Raises CheckpointError where a part is missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._opened = cache(opened)
        self._parts: dict[str, list[_Part]] = {}
        for file in sorted(directory.glob("*.safetensors")):
            header = json.loads((self._opened(file).metadata() or {}).get(_HEADER, "{}"))
            for name in self._opened(file).keys():  # noqa: SIM118 — no dictionary
                shape = tuple(self._opened(file).get_slice(name).get_shape())
                begin = header[name][_OFFSETS] if name in header else (0,) * len(shape)
                self._parts.setdefault(name, []).append(_Part(file, tuple(begin), shape))
        self._homes = {name: (parts[0].file, name) for name, parts in self._parts.items()}
        for name, parts in self._parts.items():
            if sum(math.prod(part.shape) for part in parts) != math.prod(self.shape(name)):
                raise CheckpointError(f"{directory} lacks parts of {name}; copy the whole folder again")

    def shape(self, name: str) -> tuple[int, ...]:
        ends = ([begin + n for begin, n in zip(part.begin, part.shape, strict=True)] for part in self._parts[name])
        return tuple(map(max, zip(*ends, strict=True)))

    def read(self, name: str) -> Tensor:
        parts = self._parts[name]
        if len(parts) == 1:
            return super().read(name)
        whole: Tensor | None = None
        for part in parts:
            tensor = self._opened(part.file).get_tensor(name)
            whole = torch.empty(self.shape(name), dtype=tensor.dtype) if whole is None else whole
            places = (slice(begin, begin + n) for begin, n in zip(part.begin, part.shape, strict=True))
            whole[tuple(places)] = tensor
        assert whole is not None
        return whole
