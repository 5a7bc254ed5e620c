"""Reading GGUF files: metadata at once, tensors one by one, dequantised to float32 as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import CheckpointError, UsageError
from anyformer.families.gguf import config_of, dialect_of, llama3_scaling
from anyformer.families.hf.mapping import TensorRow
from anyformer.hub.weights import refuse_misfits
from anyformer.text import Tokenizer

SUFFIX = ".gguf"
FREQUENCIES = "rope_freqs.weight"
EMBEDDING = "token_embd.weight"
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


def opened(path: Path) -> GGUF:
    """A file, read once for as long as it stays the same: its vocabulary alone takes seconds to parse."""
    try:
        now = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); give another file") from None
    return _opened(path, now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=1)
def _opened(path: Path, changed: int, nbytes: int) -> GGUF:
    return GGUF(path)


class GGUF:
    """One file: the configuration that Hugging Face would write, and tensors under Hugging Face's names."""

    def __init__(self, path: Path) -> None:
        self.path = self.directory = path
        try:
            from gguf import GGUFReader
        except ImportError:
            raise UsageError(
                f"{path}: reading GGUF files needs the package gguf; pip install 'anyformer[gguf]'"
            ) from None
        try:
            reader = GGUFReader(str(path))
            self.metadata: dict[str, Any] = {key: value.contents() for key, value in reader.fields.items()}
        except (ValueError, OSError, IndexError, KeyError, OverflowError, MemoryError) as error:
            reason = str(error).strip() or type(error).__name__
            raise CheckpointError(f"{path} is truncated or no GGUF file ({reason}); copy it again") from None
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._dialect = dialect_of(self.metadata, str(path))
        if EMBEDDING not in self._tensors:
            raise CheckpointError(f"{path} has no {EMBEDDING}; it is no whole model, copy it again")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings of the model. Raises CheckpointError for one that nobody here reads."""
        where = str(self.path)
        config = config_of(self.metadata, self._tensors, self._shape(EMBEDDING), where)
        if FREQUENCIES in self._tensors:
            config["rope_scaling"] = llama3_scaling(self._plain(FREQUENCIES), config.get("rope_theta", 1e4), where)
        return config

    def tokenizer(self) -> Tokenizer | None:
        """The file's tokenizer; None where it has none. Raises TextError for a kind that is not read."""
        from anyformer.text.gguf_vocabulary import tokenizer_in

        return tokenizer_in(self.metadata) if "tokenizer.ggml.model" in self.metadata else None

    def __contains__(self, name: str) -> bool:
        return self._dialect.name(name) in self._tensors

    def dtype(self, names: Iterable[str]) -> torch.dtype:
        """Float32, which quantised tensors are read as, or the one dtype that all of them are stored in."""
        found = {self._tensors[self._held(name)].tensor_type.name for name in names}
        return PLAIN.get(found.pop(), torch.float32) if len(found) == 1 else torch.float32

    def read(self, name: str) -> Tensor:
        """A tensor, by Hugging Face's name, as Hugging Face stores it."""
        held = self._held(name)
        return self._dialect.restored(held, self._plain(held), self.config).contiguous()

    def release(self) -> None:
        """Nothing: each tensor that is read has memory of its own."""

    def match(self, expected: Mapping[str, tuple[int, ...]], what: str, optional: Collection[str] = ()) -> None:
        """Refuse missing, surplus and misshapen tensors. Raises CheckpointError listing them."""
        named = {self._dialect.name(name): shape for name, shape in expected.items()}
        spare = {FREQUENCIES, *(self._dialect.name(name) for name in optional)}
        missing = [name for name in expected if name not in self]
        surplus = [name for name in self._tensors if name not in named and name not in spare]
        sizes = ((name, self._shape(name), shape) for name, shape in named.items() if name is not None)
        refuse_misfits(self.path, what, missing, surplus, sizes)

    def spelling(self, rows: Iterable[TensorRow], prefix: str) -> Callable[[str], str]:
        """What a tensor that rows call by one name is called here: always the same."""
        return str

    def _held(self, name: str) -> str:
        held = self._dialect.name(name)
        assert held is not None  # `match` has found each that is asked for
        return held

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def _plain(self, name: str) -> Tensor:
        from gguf import dequantize

        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind in PLAIN and kind != "BF16":
            return torch.from_numpy(np.array(tensor.data)).view(self._shape(name))
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.path}: {name} is of type {kind}, which the package gguf cannot unpack ({error}); "
                "take a file of another quantisation"
            ) from None
        found = torch.from_numpy(values).view(self._shape(name))
        return found.to(torch.bfloat16) if kind == "BF16" else found
