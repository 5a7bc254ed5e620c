"""Our cache in the place of transformers': made at the first pass, whose rows it takes; depth, windows and states are ours."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.generation.utils import ALL_CACHE_NAMES

from anyformer.cache import KVCache, StateCache
from anyformer.errors import CacheError
from anyformer.model import Transformer

CACHE: str = ALL_CACHE_NAMES[0]  # as arguments and outputs call it: past_key_values, from transformers 5.24 on cache
SLACK = 64  # tokens that assisted generation may take back from a window's ring


class AnyformerCache(Cache):
    """What generation keeps of a model's passes; `kv` is None before the first."""

    def __init__(self, length: int = 256) -> None:
        super().__init__(layers=[])
        self.length, self.slack = length, 0
        self.kv: KVCache | None = None

    def of(self, model: Transformer, batch: int) -> KVCache:
        """The cache for a pass over so many rows."""
        if self.kv is None:
            self.kv = model.new_cache(batch, self.length, slack=self.slack)
        return self.kv

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.kv is None else self.kv.n

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def activate_past_recording(self) -> None:
        self.slack = SLACK  # before the first pass, when the rings are made

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; the number is negative. Raises CacheError where a state or a window cannot."""
        if self.kv is not None and tokens_to_remove:
            self.kv.rewind(abs(tokens_to_remove))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.kv is not None:
            self.kv.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.kv is not None:
            self.kv.select(torch.arange(self.kv.batch).repeat_interleave(repeats))

    def reset(self) -> None:
        self.kv = None

    def update(self, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        raise CacheError(f"an AnyformerCache is written by the model's own layers; give it as {CACHE} alone")

    @property
    def batch_size(self) -> int:
        return -1 if self.kv is None else self.kv.batch

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return self.kv is not None

    @property
    def is_croppable(self) -> bool:
        return self.kv is None or not any(isinstance(store, StateCache) for store in self.kv.stores)

    @property
    def is_sliding(self) -> list[bool]:
        return []
