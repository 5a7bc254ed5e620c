"""Law 8: FLOPs equal an execution's, counted by PyTorch; cache bytes equal the bytes allocated; published figures come out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from anyformer.cache import KVCache
from anyformer.costs import cost
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import Causal, Everything, Heads, Mask, Prefix, SlidingWindow, SymmetricWindow
from anyformer.layers.mask import visible
from anyformer.layers.tokens import plain_tokens
from anyformer.model import build
from anyformer.spec import Load, ModelSpec, Site, Window
from tests.laws.combinations import decoders
from tests.laws.models import every_preset


def counted(spec: ModelSpec, batch: int, n: int, source: int = 7) -> int:
    """Run on the meta device and let PyTorch count."""
    model = build(spec, device="meta")
    ids = torch.zeros(batch, n, dtype=torch.long, device="meta")
    memory = torch.zeros(batch, source, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        if spec.encoder is None:
            model(ids)
        else:
            model(memory, decoder_input_ids=ids)
    return counter.get_total_flops()


@every_preset
def test_presets_flops(spec: ModelSpec) -> None:
    load = Load(batch=3, query=19, memory=7, causal_exact=False)
    assert spec.cost(Site(), load).flops == counted(spec, 3, 19)


@given(spec=decoders(), n=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_combinations_flops(spec: ModelSpec, n: int) -> None:
    assert spec.cost(Site(), Load(batch=2, query=n, causal_exact=False)).flops == counted(spec, 2, n)


# Counted by an execution of transformers' models on the meta device, GPT-2 at 1,024 tokens and Llama-3-8B at 2,048.
@pytest.mark.parametrize(
    ("name", "n", "flops"), [("gpt2", 1024, 291_648_307_200), ("llama3-8b", 2048, 32_938_104_193_024)]
)
def test_published_flops(name: str, n: int, flops: int) -> None:
    assert cost(preset(name).spec, seq_len=n, convention="full-attention").forward_flops_total == flops


# KiB a token in bfloat16: the formula 2 · n_kv_heads · head_dim · n_layers · 2 bytes, as published tables print it.
@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("llama2-7b", 512),
        ("llama2-13b", 800),
        ("llama2-70b", 320),
        ("llama3-8b", 128),
        ("llama3-70b", 320),
        ("llama3.1-405b", 504),
    ],
)
def test_published_cache(name: str, kib: int) -> None:
    report = cost(preset(name).spec, seq_len=1)
    assert report.cache_nbytes == kib * 1024


@given(spec=decoders(), n=st.integers(1, 24), batch=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_cache_bytes_are_those_allocated(spec: ModelSpec, n: int, batch: int) -> None:
    report = cost(spec, seq_len=n, batch=batch, dtype="float32")
    assert report.cache_nbytes == KVCache(spec, batch=batch, length=n).nbytes


masks = st.recursive(
    st.one_of(
        st.just(Causal()),
        st.just(Everything()),
        st.builds(SlidingWindow, size=st.integers(1, 40).map(Window)),
        st.builds(SymmetricWindow, radius=st.integers(0, 40).map(Window)),
        st.builds(Prefix, size=st.integers(1, 20).map(Window)),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
        inner.map(lambda mask: ~mask),
        st.tuples(inner, inner).map(lambda two: Heads(masks=two)),
    ),
    max_leaves=4,
)


@given(mask=masks, query=st.integers(1, 40), past=st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_pairs_reach_and_within_agree_with_the_predicate(mask: Mask, query: int, past: int) -> None:
    cpu = torch.device("cpu")
    queries, keys = plain_tokens(query, cpu, past), plain_tokens(past + query, cpu)
    head = torch.arange(4).view(1, -1, 1, 1)
    seen = mask(queries.as_queries(), keys.as_keys(), head).expand(1, 4, query, past + query)
    assert mask.pairs(query, past, 4) == int(seen.sum())
    simpler = visible(mask, queries, keys, 4)
    assert torch.equal(seen, torch.ones_like(seen) if simpler is None else simpler.expand_as(seen))
    reach = mask.reach()
    if reach is not None:
        distance = queries.as_queries().position - keys.as_keys().position
        assert not (seen & (distance >= reach)).any()


def test_a_window_is_not_counted_beyond() -> None:
    mask, n, w = Causal() & SlidingWindow(size=Window(512)), 131_072, 512
    assert mask.pairs(n, 0, 1) == w * (w + 1) // 2 + (n - w) * w


def test_conventions_differ_as_they_say() -> None:
    spec, n = preset("gpt2").spec, 1024
    exact, full = (cost(spec, seq_len=n, convention=c).forward_flops for c in ("exact-causal", "full-attention"))
    assert math.isclose(exact["scores"] / full["scores"], (n + 1) / (2 * n))
    assert {k: v for k, v in exact.items() if k not in ("scores", "values")} == {
        k: v for k, v in full.items() if k not in ("scores", "values")
    }
    with pytest.raises(SpecError, match="did you mean 'exact-causal'"):
        cost(spec, convention="exact_causal")
