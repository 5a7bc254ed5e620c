"""Law 8: FLOPs equal an execution's, counted by PyTorch; cache bytes equal the bytes allocated; published figures come out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from anyformer.cache import KVCache
from anyformer.costs import CONVENTIONS, cost
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import edited
from anyformer.families.deepseek import predicting_further
from anyformer.layers import (
    AttentionSpec,
    Causal,
    Everything,
    Heads,
    HyperStreamsSpec,
    LookAhead,
    Mask,
    Prefix,
    RelativeSinusoidSpec,
    SlidingWindow,
    StreamsSpec,
    SymmetricWindow,
)
from anyformer.layers.causality import later_tokens_seen
from anyformer.layers.mask import visible
from anyformer.layers.tokens import plain_tokens
from anyformer.model import Output, build
from anyformer.resizing import shrink
from anyformer.spec import Count, HeadLayersSpec, ModelSpec, Place, ResidualSpec, Window, Workload
from tests.laws.combinations import decoders
from tests.laws.models import every_preset, every_preset_few_fast, flop_counter, hashing, ids_for, solving
from tests.laws.weights import all_served
from tests.sample import combinations

ours = torch.ops.anyformer


def counted(spec: ModelSpec, batch: int, n: int, source: int = 7) -> int:
    """Run on the meta device and let PyTorch count."""
    model = build(spec, device="meta")
    ids = torch.zeros(batch, n, dtype=torch.long, device="meta")
    memory = torch.zeros(batch, source, dtype=torch.long, device="meta")
    with flop_counter() as counter:
        if spec.encoder is None:
            model(ids)
        else:
            model(memory, decoder_input_ids=ids)
    return counter.get_total_flops()


@every_preset
def test_presets_flops(spec: ModelSpec) -> None:
    load, spec = Workload(batch=3, query=19, memory=7, causal_exact=False), all_served(spec)
    assert spec.cost(Place(), load).flops == counted(spec, 3, 19)


# Products of PyTorch's attention on a CPU, which its registry does not know: of scores and values, and their gradients.
FUSED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: 2,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: 4,
}


class Counted(TorchDispatchMode):
    """PyTorch's own formulas for each operator, without the counter's hooks on modules: an activation that is made again
    in a backward pass of its own upsets them."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        elif func._overloadpacket is ours.sorted_by_bucket:
            self.flops += hashing(args[0].shape, *args[1:])
        elif func._overloadpacket in FUSED:  # chunks of sorted tokens, which `eager` does not write out
            products = FUSED[func._overloadpacket]
            query, key = args[:2] if products == 2 else args[1:3]
            self.flops += 2 * products * query.numel() * key.shape[2]
        elif func._overloadpacket in (ours.lstm, ours.gru):
            self.flops += 2 * args[0].shape[:2].numel() * args[1].numel()
        elif func._overloadpacket in (ours.lstm_backward, ours.gru_backward):  # of the state and of its map
            weight = next(each for each in args[1:] if each.dim() == 2)
            self.flops += 4 * args[0].shape[:2].numel() * weight.numel()
        elif func._overloadpacket is torch.ops.aten.linalg_solve_triangular:
            self.flops += solving(args[0].shape, args[1].shape)
        return out


@every_preset_few_fast
def test_presets_training_flops(spec: ModelSpec) -> None:
    """Forward and backward, every product written out (eager attention, experts one by one), counted by PyTorch."""
    spec = all_served(spec)
    model, ids, memory = build(spec), ids_for(spec, 3, 19), ids_for(spec, 3, 7)

    def run() -> Output:
        if spec.encoder is None:
            return model(ids, kernel="eager", output_ahead=bool(spec.ahead))
        return model(memory, decoder_input_ids=ids, kernel="eager")

    with Counted() as forward:
        out = run()
        loss = sum((answer.sum() for answer in out.outputs.values()), out.last_hidden_state.sum())
        loss = sum((model.head()(hidden).sum() for hidden in out.ahead), loss)
    with Counted() as backward:
        loss.backward()
    convention, load = CONVENTIONS["full-attention"], Workload(batch=3, query=19, memory=7 if spec.encoder else 0)
    ahead = convention.forward(spec, load, ahead=True)
    assert forward.flops == sum((*convention.forward(spec, load).values(), *ahead.values()))
    assert bool(ahead) == bool(spec.ahead)
    assert forward.flops + backward.flops == sum(convention.training(spec, load).values())


@given(spec=decoders(), n=st.integers(1, 30))
@settings(max_examples=combinations(40), deadline=None)
def test_combinations_flops(spec: ModelSpec, n: int) -> None:
    spec = all_served(spec)
    assert spec.cost(Place(), Workload(batch=2, query=n, causal_exact=False)).flops == counted(spec, 2, n)


TERMS = {
    "llama2-7b": "projections scores values feed-forward logits",
    "mamba-130m": "projections logits",
    "mamba2-130m": "projections recurrence logits",
    "rwkv-4-169m": "projections feed-forward logits",
    "reformer-enwik8": "projections hashes scores values feed-forward logits",
    "convbert-base": "convolution projections scores values feed-forward logits",
    "mobilebert-uncased": "bottlenecks linear projections scores values feed-forward logits",
    "gemma3n-e4b": "streams LAuReL per-layer embeddings projections scores values feed-forward logits",
    "deepseek-v4-flash": "streams compression indexer indexer scores router experts shared expert projections scores values "
    "logits",
    "qwen3.8-flash-next": "streams n-grams indexer indexer scores router experts shared expert recurrence projections scores "
    "values logits",
}


@pytest.mark.parametrize("name", TERMS)
def test_flops_bear_the_names_of_what_makes_them(name: str) -> None:
    terms = shrink(preset(name).spec).cost(Place(), Workload(batch=2, query=7))
    assert sorted(" ".join(terms).split()) == sorted(TERMS[name].split())
    assert all(terms.values())


@pytest.mark.parametrize("name", ["qwen3.8-flash-next", "deepseek-v4-flash"])
def test_where_no_block_is_whole_an_indexer_asks_for_none(name: str) -> None:
    """Of blocks of keys, and of keys of blocks."""
    spec = all_served(shrink(preset(name).spec))
    for n in (1, 2, 4, 6):
        assert spec.cost(Place(), Workload(batch=2, query=n, causal_exact=False)).flops == counted(spec, 2, n)


@pytest.mark.parametrize("streams", [StreamsSpec(n=Count(2)), HyperStreamsSpec(n=Count(2))])
def test_layers_behind_the_stack_open_streams_of_their_own(streams: ResidualSpec) -> None:
    """Those of a head, and those that predict further tokens."""
    spec = shrink(preset("llama3-8b").spec)
    spec = spec.but(stack=spec.stack.but(residual=streams))
    layers = HeadLayersSpec(blocks=spec.stack.blocks[:1])
    headed = spec.but(heads=(spec.heads[0].but(layers=layers),))
    load = Workload(batch=2, query=9, causal_exact=False)
    assert headed.cost(Place(), load).flops == counted(headed, 2, 9)
    further, convention = predicting_further(spec, 2), CONVENTIONS["full-attention"]
    model = build(further, device="meta")
    with flop_counter() as counter:
        out = model(torch.zeros(2, 9, dtype=torch.long, device="meta"), output_ahead=True)
        for hidden in out.ahead:
            model.head()(hidden)
    said = (*convention.forward(further, load).values(), *convention.forward(further, load, ahead=True).values())
    assert sum(said) == counter.get_total_flops()


def of_cross(**fields: Any) -> ModelSpec:
    """An encoder–decoder with these fields in its cross-attention alone."""
    spec = shrink(preset("t5-small").spec)
    return edited(spec, AttentionSpec, lambda a: a.but(**{"scores": (), **(fields if a.reads == "memory" else {})}))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("n", "source"), [(19, 7), (5, 40), (8, 8), (1, 30)])
def test_distances_to_a_source_are_as_many_as_both_texts_make(n: int, source: int, bidirectional: bool) -> None:
    spec = of_cross(scores=(RelativeSinusoidSpec(bidirectional=bidirectional),))
    load = Workload(batch=3, query=n, memory=source, causal_exact=False)
    assert spec.cost(Place(), load).flops == counted(spec, 3, n, source)


@pytest.mark.parametrize(("past", "n", "source"), [(0, 14, 11), (0, 5, 20), (13, 1, 11), (4, 3, 5), (0, 9, 9)])
@pytest.mark.parametrize(
    ("mask", "sees"),
    [
        (Everything(), lambda i, j: True),
        (Causal(), lambda i, j: j <= i),
        (SymmetricWindow(radius=Window(2)), lambda i, j: abs(i - j) <= 2),
        (Causal() & SlidingWindow(size=Window(3)), lambda i, j: 0 <= i - j < 3),
        (LookAhead(size=Window(3)) & SlidingWindow(size=Window(3)), lambda i, j: -3 <= i - j < 3),
        (Prefix(size=Window(4)) & ~SymmetricWindow(radius=Window(1)), lambda i, j: j < 4 and abs(i - j) > 1),
    ],
    ids=lambda value: value.kind if isinstance(value, Mask) else "",
)
def test_pairs_of_a_source_that_a_mask_shows(mask: Mask, sees: Any, past: int, n: int, source: int) -> None:
    """Counted pair by pair; by the convention that counts all of them, all."""
    seen = sum(sees(i, j) for i in range(past, past + n) for j in range(source))
    attention = next(a for a in of_cross(mask=mask).nested() if isinstance(a, AttentionSpec) and a.reads == "memory")
    place, work = Place(d_model=32, d_source=32), Workload(batch=2, query=n, past=past, memory=source)
    n_heads, width, _ = attention.projection.sizes(place)
    assert attention.cost(place, work)["scores"] == 2 * 2 * width * n_heads * seen
    every = attention.cost(place, replace(work, causal_exact=False))
    assert every["scores"] == 2 * 2 * width * n_heads * n * source


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


@every_preset
def test_presets_cache_bytes_are_those_allocated(spec: ModelSpec) -> None:
    """Full, ring, latent and cross-attention's stores, shorter than a window, as long, and longer; every batch.

    A model whose tokens see later ones cannot be continued: it has no cache, and no token to decode.
    """
    for batch, n in ((1, 5), (2, 24), (3, 60)):
        report = cost(spec, seq_len=n, batch=batch, dtype="float32")
        if later_tokens_seen(spec.stack, after_prefix=True):
            assert (report.cache, report.decode_flops) == ((), {})
            continue
        cache = KVCache(spec, batch=batch, length=n)
        held = [tensor.untyped_storage() for store in cache.stores for tensor in store.held.values()]
        allocated = {storage.data_ptr(): storage.nbytes() for storage in held}
        memory = sum(
            kind.nbytes for kind in report.cache if kind.kind == "memory"
        )  # allocated when the encoder has run
        assert report.cache_nbytes - memory == cache.nbytes == sum(allocated.values())


@given(spec=decoders(), n=st.integers(1, 24), batch=st.integers(1, 3))
@settings(max_examples=combinations(40), deadline=None)
def test_cache_bytes_are_those_allocated(spec: ModelSpec, n: int, batch: int) -> None:
    report = cost(spec, seq_len=n, batch=batch, dtype="float32")
    allocated = 0 if later_tokens_seen(spec.stack, after_prefix=True) else KVCache(spec, batch=batch, length=n).nbytes
    assert report.cache_nbytes == allocated


masks = st.recursive(
    st.one_of(
        st.just(Causal()),
        st.just(Everything()),
        st.builds(SlidingWindow, size=st.integers(1, 40).map(Window)),
        st.builds(SymmetricWindow, radius=st.integers(0, 40).map(Window)),
        st.builds(LookAhead, size=st.integers(1, 40).map(Window)),
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
