"""Reading GGUF files: metadata at once, tensors one by one, dequantised to float32 as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import CheckpointError, of_extra
from anyformer.families.gguf import config_of, dialect_of, llama3_scaling
from anyformer.families.hf.mapping import TensorRow
from anyformer.families.hf.settings import Settings
from anyformer.hub.gguf_header import read_header
from anyformer.hub.weights import Expected, refuse_misfits
from anyformer.spec import ModelSpec
from anyformer.text import Tokenizer
from anyformer.text.gguf_vocabulary import tokenizer_in

SUFFIX = ".gguf"
FREQUENCIES = "rope_freqs.weight"
POOLING = "pooling_type"
EMBEDDING = "token_embd.weight"
PLAIN = {0: torch.float32, 1: torch.float16, 28: torch.float64, 30: torch.bfloat16}  # by ggml's numbers of types


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
    """One file: the configuration that Hugging Face would write, and tensors by the names that the file has."""

    def __init__(self, path: Path) -> None:
        self.directory = path
        with of_extra("gguf", f"{path}: reading GGUF files", "package gguf"):
            from gguf import GGML_QUANT_SIZES
        try:
            sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
            self.metadata, self._tensors = read_header(path, sizes)
        except (ValueError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or no GGUF file ({error}); copy it again") from None
        self._dialect = dialect_of(self.metadata, self._tensors, str(path))
        if EMBEDDING not in self._tensors:
            raise CheckpointError(f"{path} has no {EMBEDDING}; it is no whole model, copy it again")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings of the model. Raises CheckpointError for one that nobody here reads."""
        where = str(self.directory)
        config = config_of(self.metadata, self._tensors, self.shape(EMBEDDING), where)
        if FREQUENCIES in self._tensors:
            theta = Settings(config, where).positive("rope_theta", float, 1e4)
            config["rope_scaling"] = llama3_scaling(self.read(FREQUENCIES), theta, where)
        return config

    @property
    def pooling_type(self) -> Any:
        """How tokens become one vector, as a number; 0 where nothing is said."""
        return self.metadata.get(f"{self._dialect.architecture}.{POOLING}", 0)

    def dense(self) -> list[int]:
        """How wide each layer behind the pool is. Raises CheckpointError for a width that is not its tensor's."""
        found = []
        for name in self._dialect.dense:
            if (tensor := f"{name}.weight") not in self:
                continue
            for end, width in zip(("feat_out", "feat_in"), self.shape(tensor), strict=True):
                key = f"{self._dialect.architecture}.{name}_{end}"
                if self.metadata.get(key, width) != width:
                    raise CheckpointError(
                        f"{self.directory}: {key} = {self.metadata[key]!r}, and {tensor} has {width}; convert the file again"
                    )
            found.append(self.shape(tensor)[0])
        return found

    def tokenizer(self) -> Tokenizer | None:
        """The file's tokenizer; None where it has none. Raises TextError for a kind that is not read."""
        return tokenizer_in(self.metadata) if "tokenizer.ggml.model" in self.metadata else None

    def rows(self, spec: ModelSpec) -> list[TensorRow]:
        """The rows of a model's tensors and those of the file, without its pool's."""
        return self._dialect.rows(spec)

    def dense_rows(self, spec: ModelSpec) -> list[TensorRow]:
        """The rows of the layers behind a model's pool."""
        return self._dialect.dense_rows(spec)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def listed(self) -> list[str]:
        """The names of all tensors."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._tensors[name].shape

    def dtype(self, names: Iterable[str]) -> torch.dtype:
        """Float32, which quantised tensors are read as, or the one dtype that all of them are stored in."""
        found = {self._tensors[name].kind for name in names}
        return PLAIN.get(found.pop(), torch.float32) if len(found) == 1 else torch.float32

    def release(self) -> None:
        """Nothing: each tensor that is read has memory of its own."""

    def match(self, expected: Expected, what: str, optional: Collection[str] = ()) -> None:
        """Refuse tensors as `refuse_misfits` does."""
        refuse_misfits(self, expected, f"{self._dialect.architecture} as {what}", (*optional, FREQUENCIES))

    def spelling(self, rows: Iterable[TensorRow], prefix: str) -> Callable[[str], str]:
        """What a tensor that rows call by one name is called here: always the same."""
        return str

    def read(self, name: str) -> Tensor:
        """A tensor, in float32 where the file has it quantised."""
        from gguf import GGMLQuantizationType, dequantize

        entry = self._tensors[name]
        held = np.fromfile(self.directory, np.uint8, entry.nbytes, offset=entry.start)
        if entry.kind in PLAIN:
            return torch.from_numpy(held).view(PLAIN[entry.kind]).view(entry.shape)
        kind = GGMLQuantizationType(entry.kind)
        try:
            values = dequantize(held.reshape(*entry.shape[:-1], -1), kind)
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.directory}: {name} is of type {kind.name}, which the package gguf cannot unpack ({error}); "
                "take a file of another quantisation"
            ) from None
        return torch.from_numpy(values).view(entry.shape)
