"""A static cache, which goes on where a prompt ends, gives what the cache that read it would give, whatever a model keeps."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch

from anyformer.cache import KVCache
from anyformer.errors import CacheError
from anyformer.generation import StaticCache
from anyformer.generation.static_cache import takes_several
from anyformer.layers import MoESpec
from anyformer.spec import ModelSpec
from tests.laws.models import DECODERS, every_writer, ids_for, one_chunk, randomised, runner
from tests.laws.parity import InDouble, of_few_features
from tests.laws.tolerance import FLOAT32, FLOAT64, close
from tests.laws.weights import edited

N, READ = 22, 9


def check(spec: ModelSpec, left: int, most: float, dtype: torch.dtype | None = None) -> None:
    """After READ tokens one at a time, or several where it takes them; row 0 is padded by `left` tokens on the left.

    Against the pass over all of them.
    """
    model, ids = randomised(spec).to(torch.get_default_dtype()), ids_for(spec, 2, N)
    mask = torch.ones_like(ids)
    mask[0, :left] = 0
    run = runner(model)
    read = KVCache(spec, batch=2, length=32, dtype=dtype or torch.get_default_dtype())
    with torch.inference_mode():
        if dtype is None:
            whole = run(ids, mask).logits
        else:
            other = KVCache(spec, batch=2, length=32, dtype=dtype)
            whole = torch.cat(
                [run(ids[:, a:b], mask[:, a:b], cache=other).logits for a, b in ((0, READ), (READ, N))], 1
            )
        run(ids[:, :READ], mask[:, :READ], cache=read)
        cache = StaticCache(read)
        kept = [value.data_ptr() for store in cache.stores for value in store.held.values()]
        ends = [READ, READ + 1, READ + 5, READ + 6, N] if takes_several(cache) else range(READ, N + 1)
        later = [run(ids[:, a:b], cache=cache).logits for a, b in pairwise(ends)]
        assert kept == [value.data_ptr() for store in cache.stores for value in store.held.values()]
    close(torch.cat(later, 1), whole[:, READ:], most)


@every_writer
def test_presets(spec: ModelSpec) -> None:
    """Far beyond the windows; without what limits how many tokens an expert takes: they compete within a pass."""
    spec = edited(one_chunk(spec), MoESpec, lambda mixture: mixture.but(capacity=None))
    few = any(map(of_few_features, spec.nested()))
    with InDouble() if few else nullcontext():
        check(spec, 0 if spec.encoder else 4, 1000 * FLOAT64 if few else FLOAT32)


@pytest.mark.parametrize("name", ["mistral", "deepseek-v3", "gpt-oss"])
def test_in_8_bits(name: str) -> None:
    spec = next(spec for names, spec in DECODERS.items() if name in names)
    check(spec, 4, FLOAT32, torch.int8)


def test_what_it_refuses() -> None:
    spec = next(
        spec for names, spec in DECODERS.items() if "mistral" in names
    )  # of windows, whose slots are used again
    model, ids = randomised(spec), ids_for(spec, 1, 4)
    with torch.inference_mode(), pytest.raises(CacheError, match="goes on where a prompt ends"):
        StaticCache(KVCache(spec))
    read = KVCache(spec, length=8)
    with torch.inference_mode():
        model(ids, cache=read)
        cache = StaticCache(read)
        with pytest.raises(CacheError, match="one token of each of its 1 rows, not 4 of 1"):
            model(ids, cache=cache)
    for ask in (lambda: cache.rewind(1), lambda: cache.select([0]), lambda: cache.join(read)):
        with pytest.raises(CacheError, match="decode without compiling"):
            ask()
