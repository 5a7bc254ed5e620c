"""A cache in 8 bits: what it holds is near by half a step; in whatever chunks a text is read, and after anything a cache does,
it is the model whose keys and values are so rounded.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.cache import CrossAttentionCache, KVCache, LayerCache, StateCache
from anyformer.layers import int8_vectors
from anyformer.spec import ModelSpec
from tests.laws.models import SHRUNK, ids_for, randomised, runner
from tests.laws.tolerance import FLOAT32_READ, close, distance
from tests.layers.test_packed import bfloat16

HARD = (
    "gpt2",
    "llama3-8b",
    "gemma3n-e4b",
    "t5-small",
    "deepseek-v3",
    "qwen3-next-80b-a3b",
    "gpt-oss-20b",
    "mistral-7b-v0.1",
)
NAMED = {name: spec for names, spec in SHRUNK.items() for name in names.split(" = ") if name in HARD}
N = 14


@pytest.mark.parametrize("width", [1, 2, 31, 32, 48, 66, 576])
def test_a_number_is_off_by_half_a_step_at_most(width: int) -> None:
    x = torch.randn(3, 5, width, generator=torch.Generator().manual_seed(width)) * torch.logspace(-3, 3, 5)[:, None]
    x[0, 0] = 0
    numbers, scales = int8_vectors.packed(x)
    assert (numbers.shape, numbers.dtype, scales.dtype) == (x.shape, torch.int8, torch.bfloat16)
    size = max(n for n in range(1, 33) if width % n == 0)
    assert scales.shape == (3, 5, width // size)
    assert numbers[0, 0].nbytes + scales[0, 0].nbytes == int8_vectors.nbytes(width)
    found = int8_vectors.unpacked(numbers, scales, torch.float32)
    for vector, held in zip(x.view(-1, width).tolist(), found.view(-1, width).tolist(), strict=True):
        for at in range(0, width, size):
            most = max(map(abs, vector[at : at + size]))
            for number, near in zip(vector[at : at + size], held[at : at + size], strict=True):
                assert abs(number - near) <= 0.5 * most / 127 * (1 + 2**-8)


def read(
    spec: ModelSpec, ids: Tensor, sizes: list[int], dtype: torch.dtype | None = torch.int8
) -> tuple[Tensor, KVCache]:
    model, outs, at = randomised(spec), [], 0
    model.cache_dtype = dtype
    cache = model.new_cache(len(ids), N)
    with torch.no_grad():
        for size in sizes:
            outs.append(runner(model)(ids[:, at : at + size], cache=cache).logits)
            at += size
    return torch.cat(outs, 1), cache


def rounded(x: Tensor) -> Tensor:
    """Return x [.., width] with each number at the nearest step of its group, one after the other."""
    width = x.shape[-1]
    size, out = max(n for n in range(1, 33) if width % n == 0), []
    for vector in x.reshape(-1, width).tolist():
        for at in range(0, width, size):
            some = vector[at : at + size]
            step = bfloat16(torch.tensor(max(map(abs, some))).div(127).item()) or 1.0
            out += [step * min(127, max(-127, round(number / step))) for number in some]
    return torch.tensor(out).view(x.shape)


@pytest.mark.parametrize("spec", NAMED.values(), ids=list(NAMED))
def test_it_is_the_model_of_rounded_keys_and_values(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever chunks, through rings, latents, an encoder's memory and beside states: no other number is rounded."""
    ids = ids_for(spec, 2, N)
    whole, cache = read(spec, ids, [N])
    for sizes in ([1] * N, [5, 1, 4, 1, 3]):
        close(read(spec, ids, sizes)[0], whole, FLOAT32_READ)
    assert distance(whole, read(spec, ids, [N], None)[0]) > 1e-5, "what is new is seen as it is held"
    ints = [held for store in cache.stores if not isinstance(store, StateCache) for held in store.held.values()]
    assert {held.dtype for held in ints} == {torch.int8, torch.bfloat16}

    def each(made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: rounded(value) for name, value in made.items()}

    extend, once = LayerCache.extend, CrossAttentionCache.once
    monkeypatch.setattr(LayerCache, "extend", lambda self, new: extend(self, each(new)))
    monkeypatch.setattr(CrossAttentionCache, "once", lambda self, make: once(self, lambda: each(make())))
    close(whole, read(spec, ids, [N], None)[0], FLOAT32_READ)


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "mistral-7b-v0.1"])
def test_bytes_are_those_that_cost_names(name: str) -> None:
    spec = NAMED[name]
    found = af.cost(spec, seq_len=9, dtype="float32", cache_dtype="int8", batch=2)
    cache = KVCache(spec, 2, 9, dtype=torch.int8)
    assert (cache.nbytes, "int8") == (found.cache_nbytes, found.cache_dtype)
    if name == "llama3-8b":  # in full size: 32 layers, keys and values, 8 heads of 128 numbers and 4 scales
        full = af.cost(af.preset(name), seq_len=8192, cache_dtype="int8")
        assert full.cache_nbytes == 32 * 2 * 8 * (128 + 4 * 2) * 8192


def test_rewound_chosen_and_joined() -> None:
    spec = NAMED["llama3-8b"]
    model, ids = randomised(spec), ids_for(spec, 2, N)
    model.cache_dtype = torch.int8
    whole, _ = read(spec, ids, [N])
    with torch.no_grad():
        cache = model.new_cache(2, N)
        model(ids[:, :9], cache=cache)
        cache.rewind(4)
        cache.select([1, 0])
        close(model(ids[[1, 0], 5:], cache=cache).logits, whole[[1, 0], 5:], FLOAT32_READ)
        one, other = (model.new_cache(1, N) for _ in range(2))
        model(ids[:1, :6], cache=one)
        model(ids[1:, :6], cache=other)
        one.join(other)
        close(model(ids[:, 6:], cache=one).logits, whole[:, 6:], FLOAT32_READ)
