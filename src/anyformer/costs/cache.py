"""Bytes of a key/value cache: what decoding keeps of each token, call by call, as `KVCache` allocates it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import ModelSpec, cached_calls


@dataclass(frozen=True)
class CacheKind:
    """The cached calls of one reach."""

    kind: str  # "full", "window of 512", "memory"
    calls: int
    nbytes_per_token: int
    tokens: int  # that it holds of the context
    nbytes: int  # for the batch


def cache_kinds(
    spec: ModelSpec, *, batch: int, seq_len: int, source_len: int, element_nbytes: int
) -> tuple[CacheKind, ...]:
    """The cache of `batch` rows of `seq_len` tokens after `source_len` of an encoder, by reach.

    What sees later tokens cannot be continued, and keeps nothing.
    """
    kinds: dict[str, CacheKind] = {}
    for mixer, shapes in () if later_tokens_seen(spec.stack, after_prefix=True) else cached_calls(spec):
        reach = mixer.reach()
        name = "memory" if mixer.keeps_memory() else "full" if reach is None else f"window of {reach}"
        tokens = source_len if mixer.keeps_memory() else seq_len if reach is None else min(reach, seq_len)
        per_token = element_nbytes * sum(math.prod(shape) for shape in shapes.values())
        known = kinds.get(name, CacheKind(name, 0, 0, tokens, 0))
        nbytes = known.nbytes + per_token * tokens * batch
        kinds[name] = CacheKind(name, known.calls + 1, known.nbytes_per_token + per_token, tokens, nbytes)
    return tuple(kinds.values())
