"""Law 4: cached decoding equals the full pass: any chunking, beyond windows, padded on either side, after select and rewind."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from anyformer.cache import KVCache
from anyformer.errors import CacheError
from anyformer.families import preset
from anyformer.layers import (
    ALiBiSpec,
    AttentionSpec,
    Causal,
    GatedDeltaNetSpec,
    MoESpec,
    RelativeSinusoidSpec,
    ShawKeysSpec,
    SlidingWindow,
)
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, Window, dumps, loads
from tests.laws.combinations import decoders, without_blocks
from tests.laws.models import DECODERS, WRITERS, ids_for, one_chunk, randomised, runner, waives
from tests.laws.parity import InDouble, of_few_features
from tests.laws.tolerance import FLOAT32, FLOAT64, close
from tests.laws.weights import edited
from tests.sample import beside, combinations

N = 22
chunkings = st.lists(st.integers(1, 6), min_size=1, max_size=N).map(lambda sizes: cut_to(sizes, N))


def cut_to(sizes: list[int], n: int) -> list[int]:
    """Return chunk sizes that add up to n."""
    out: list[int] = []
    for size in sizes * n:
        out.append(min(size, n - sum(out)))
        if sum(out) == n:
            break
    return out


def check_cached(
    spec: ModelSpec, sizes: list[int], left: int = 0, right: int = 0, length: int = N, most: float = FLOAT32
) -> None:
    """Row 0 is padded by `left` tokens on the left and `right` on the right; row 1 is plain."""
    mask = torch.ones(2, N, dtype=torch.long)
    mask[0, :left] = 0
    if right:
        mask[0, -right:] = 0
    check_masked(spec, sizes, mask, length, most)


def check_masked(spec: ModelSpec, sizes: list[int], mask: Tensor, length: int = N, most: float = FLOAT32) -> None:
    model, ids = randomised(spec).to(torch.get_default_dtype()), ids_for(spec, 2, N)
    facts = None if bool(mask.all()) else mask
    run, cache, outs, at = runner(model), KVCache(spec, batch=2, length=length), [], 0
    with torch.no_grad():
        whole = run(ids, facts).logits
        for size in sizes:
            chunk = None if facts is None else mask[:, at : at + size]
            outs.append(run(ids[:, at : at + size], chunk, cache=cache).logits)
            at += size
    real = mask.bool()
    close(torch.cat(outs, 1)[real], whole[real], most)


SIZES = {"one": ([N],), "each": ([1] * N,), "mixed": ([7, 1, 1, 5, 1, 7],)}


@pytest.mark.parametrize(("spec", "sizes"), beside(WRITERS, SIZES, {"mixed"}))
def test_presets(spec: ModelSpec, sizes: list[int]) -> None:
    """Without what limits how many tokens an expert takes: they compete within a pass.

    In float64 where few features, or states that turn what they hold, enlarge what float32 rounds.
    """
    spec = edited(one_chunk(spec), MoESpec, lambda mixture: mixture.but(capacity=None))
    turning = any(isinstance(part, GatedDeltaNetSpec) and part.most_rate > 1 for part in spec.nested())
    few = turning or any(map(of_few_features, spec.nested()))
    with InDouble() if few else nullcontext():
        most = 1000 * FLOAT64 if few else FLOAT32
        check_cached(spec, sizes, most=most)
        if spec.encoder is None:
            check_cached(spec, sizes, left=5, most=most)


def test_a_capacity_bites() -> None:
    """Else what it waives would be waived for nothing."""
    spec = shrink(preset("switch-base-8").spec)
    check_cached(spec, [N])
    with pytest.raises(AssertionError, match="apart, relative"):
        check_cached(spec, [1] * N)


@given(
    spec=decoders(), sizes=chunkings, left=st.integers(0, 6), right=st.integers(0, 6), length=st.sampled_from([4, N])
)
@settings(max_examples=combinations(60), deadline=None)
def test_combinations(spec: ModelSpec, sizes: list[int], left: int, right: int, length: int) -> None:
    """In float64: some combinations, such as windows of one key under norms, enlarge float32's rounding."""
    with InDouble():
        check_cached(spec, sizes, left, right, length, 1000 * FLOAT64)


@given(spec=decoders(), sizes=chunkings, real=st.lists(st.booleans(), min_size=N, max_size=N))
@settings(max_examples=combinations(60), deadline=None)
def test_padding_between_tokens(spec: ModelSpec, sizes: list[int], real: list[bool]) -> None:
    """As rows padded on the right have it once they go on; row 1 is plain."""
    with InDouble():
        check_masked(spec, sizes, torch.tensor([[int(each) for each in real], [1] * N]), most=1000 * FLOAT64)


@pytest.mark.parametrize("slack", [0, 2])
def test_padding_pushes_no_token_out_of_a_window(slack: int) -> None:
    """Row 0 is padded on the right; both go on, take tokens back and go on again."""
    spec = windowed(shrink(preset("llama2-7b").spec), 4)
    model, ids = randomised(spec), ids_for(spec, 2, 20)
    mask = torch.tensor([[1] * 5 + [0] * 5 + [1] * 10, [1] * 20])
    cache = KVCache(spec, batch=2, length=20, slack=slack)
    with torch.no_grad():
        parts = [model(ids[:, a:b], mask[:, a:b], cache=cache).logits for a, b in ((0, 10), (10, 11), (11, 15))]
        cache.rewind(1 + slack)
        parts.append(model(ids[:, 14 - slack :], cache=cache).logits)
        whole = model(ids, mask).logits
    close(torch.cat(parts[:3], 1)[mask[:, :15].bool()], whole[:, :15][mask[:, :15].bool()])
    close(parts[3], whole[:, 14 - slack :])


def test_facts_of_one_row_are_all_rows() -> None:
    """Of which one was padding alone so far."""
    spec = shrink(preset("llama2-7b").spec)
    model, ids = randomised(spec), ids_for(spec, 2, 8)
    begun = torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]])
    with torch.no_grad():
        for given, mask in (
            ({"attention_mask": torch.tensor([[1, 1, 0]])}, torch.tensor([[1, 1, 0, 1]] * 2)),
            ({"position_ids": torch.arange(3)[None]}, torch.tensor([[1] * 4, [2] * 4])),
        ):
            cache = KVCache(spec, batch=2, length=8)
            model(ids[:, :4], begun, cache=cache)
            parts = [model(ids[:, 4:7], **given, cache=cache).logits, model(ids[:, 7:], cache=cache).logits]
            whole = model(ids, torch.cat((begun, mask), 1)).logits[:, 4:]
            close(torch.cat(parts, 1)[mask > 0], whole[mask > 0])


@given(
    spec=decoders().map(without_blocks), drops=st.tuples(st.integers(0, 4), st.integers(0, 4)), left=st.integers(0, 3)
)
@settings(  # most that are drawn keep a state somewhere, which nothing takes back
    max_examples=combinations(60), deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
def test_rewind(spec: ModelSpec, drops: tuple[int, int], left: int) -> None:
    """After taking tokens back, row by row, others follow as if the former had never been."""
    assume(not waives(spec, "rewind"))
    model, ids, new = randomised(spec), ids_for(spec, 2, 12), ids_for(spec, 2, 5, seed=7)
    mask = torch.ones_like(ids)
    mask[0, :left] = 0
    cache = KVCache(spec, batch=2, length=30, slack=4)
    with torch.no_grad():
        for chunk, facts in zip(ids.split(4, 1), mask.split(4, 1), strict=True):
            model(chunk, facts, cache=cache)
        cache.rewind(drops)
        got = torch.cat(
            [model(new[:, :2], cache=cache).logits, *(model(new[:, i : i + 1], cache=cache).logits for i in (2, 3, 4))],
            1,
        )
        for row, drop in enumerate(drops):
            start = left if row == 0 else 0
            kept = torch.cat((ids[row, start : 12 - drop], new[row]))[None]
            close(got[row], model(kept).logits[0, -5:])


@pytest.mark.parametrize(
    ("mask", "drops", "kept"),
    [([1] * 10 + [0] * 2, 2, 10), ([1] * 9 + [2] * 3, 3, 9), ([0] * 9 + [1] * 3, 4, 0)],
    ids=["padding", "a-document", "more-than-its-own"],
)
@pytest.mark.parametrize("window", [None, 5])
def test_rewind_goes_on_after_the_last_token_that_is_left(
    window: int | None, mask: list[int], drops: int, kept: int
) -> None:
    """Row 0 keeps its first `kept` tokens, whatever stood in the columns taken back; row 1 is plain, and loses one less."""
    spec = shrink(preset("gpt2").spec)
    spec = spec if window is None else windowed(spec, window)
    model, ids, new = randomised(spec), ids_for(spec, 2, 12), ids_for(spec, 2, 3, seed=7)
    cache = KVCache(spec, batch=2, length=30, slack=4)
    with torch.no_grad():
        model(ids, torch.tensor([mask, [1] * 12]), cache=cache)
        cache.rewind((drops, drops - 1))
        got = torch.cat([model(part, cache=cache).logits for part in new.split(2, 1)], 1)
        for row, n in enumerate((kept, 12 - drops + 1)):
            close(got[row], model(torch.cat((ids[row, :n], new[row]))[None]).logits[0, -3:])


@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [[1] * N, [7, 1, 1, 5, 1, 7]], ids=["each", "mixed"])
def test_scores_know_the_keys_of_a_ring_that_has_come_round(sizes: list[int], window: int) -> None:
    """They lie in no order there, which scores by distance must see whatever fast way they have."""
    gopher = shrink(preset("gopher-44m").spec)
    mask = Causal() & SlidingWindow(size=Window(window))
    for scores in (
        (RelativeSinusoidSpec(),),
        (RelativeSinusoidSpec(), ALiBiSpec()),
        (ShawKeysSpec(farthest=Window(3)),),
    ):
        spec = edited(gopher, AttentionSpec, lambda value, scores=scores: value.but(mask=mask, scores=scores))
        check_cached(spec, sizes)
        check_cached(spec, sizes, left=5, right=2)


def test_rewind_refuses_what_a_ring_has_lost() -> None:
    cache = KVCache(windowed(next(iter(DECODERS.values()))), batch=1, length=40)
    model = randomised(windowed(next(iter(DECODERS.values()))))
    with torch.no_grad():
        model(ids_for(model.spec, 1, 20), cache=cache)
    with pytest.raises(CacheError, match="slack=3"):
        cache.rewind(4)


@pytest.mark.parametrize(
    ("slack", "lost"), [(0, [1, 1]), (2, [3, 3]), (2, [2, 2]), (2, [3, -1, 3]), (0, [1, -1, 1, 1])]
)
def test_nor_does_it_in_pieces(slack: int, lost: list[int]) -> None:
    """Tokens taken back, or, below 0, written again: the last step asks for what the ring lost for the first ones."""
    spec = windowed(next(iter(DECODERS.values())))
    model, ids, cache = randomised(spec), ids_for(spec, 1, 24), KVCache(spec, length=40, slack=slack)
    with torch.no_grad():
        whole = model(ids).logits
        model(ids[:, :20], cache=cache)
        for step in lost[:-1]:
            if step > 0:
                cache.rewind(step)
            else:
                close(model(ids[:, cache.n : cache.n - step], cache=cache).logits, whole[:, cache.n + step : cache.n])
        with pytest.raises(CacheError, match="no longer holds"):
            cache.rewind(lost[-1])
        at = cache.n  # what was refused changed nothing
        close(model(ids[:, at:], cache=cache).logits, whole[:, at:])


def test_the_token_before_the_last_of_a_window_of_one() -> None:
    """Says the position of rows that were padded."""
    spec = windowed(next(iter(DECODERS.values())), 1)
    model, ids, cache = randomised(spec), ids_for(spec, 2, 20), KVCache(spec, batch=2, length=30)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    with torch.no_grad():
        whole = model(ids, mask).logits
        model(ids[:, :19], mask[:, :19], cache=cache)
        cache.rewind(1)
        close(model(ids[:, 18:19], cache=cache).logits, whole[:, 18:19])


@given(spec=decoders(), rows=st.lists(st.integers(0, 2), min_size=1, max_size=5))
@settings(max_examples=combinations(30), deadline=None)
def test_select(spec: ModelSpec, rows: list[int]) -> None:
    model, ids = randomised(spec), ids_for(spec, 3, 12)
    new = ids_for(spec, len(rows), 3, seed=5)
    cache = KVCache(spec, batch=3, length=12)
    with torch.no_grad():
        model(ids, cache=cache)
        cache.select(rows)
        got = torch.cat([model(new[:, i : i + 1], cache=cache).logits for i in range(3)], 1)
        close(got, model(torch.cat((ids[rows], new), 1)).logits[:, -3:])


def test_select_takes_the_memory_along() -> None:
    """Also where rows share positions and each has a mask of its own."""
    spec = shrink(preset("t5-base").spec)
    model, source, target = randomised(spec), ids_for(spec, 2, 6), ids_for(spec, 2, 3, seed=7)
    known = torch.tensor([[1, 1, 1, 0, 0, 0], [1] * 6]), torch.arange(6)[None]
    cache = KVCache(spec, batch=2, length=6)
    with torch.no_grad():
        whole = model(source, *known, decoder_input_ids=target).logits
        model(source, *known, decoder_input_ids=target[:, :2], cache=cache)
        cache.select([1, 0, 1])
        got = model(decoder_input_ids=target[[1, 0, 1], 2:], cache=cache).logits
    close(got[:, 0], whole[[1, 0, 1], -1])


def windowed(spec: ModelSpec, size: int = 5) -> ModelSpec:
    """Return the specification with a sliding window in every layer."""
    block = spec.stack.blocks[0]
    branch = block.sublayers[0].branches[0]
    assert isinstance(branch.mixer, AttentionSpec)
    narrow = branch.but(mixer=branch.mixer.but(mask=Causal() & SlidingWindow(size=Window(size))))
    first = block.sublayers[0].but(branches=(narrow, *block.sublayers[0].branches[1:]))
    return spec.but(stack=spec.stack.but(blocks=(block.but(sublayers=(first, *block.sublayers[1:])),) * 2))


def test_a_ring_keeps_only_its_window() -> None:
    spec = windowed(next(iter(DECODERS.values())))
    short, long = KVCache(spec, length=100), KVCache(spec, length=10_000)
    assert short.nbytes == long.nbytes
    check_cached(spec, [3, 1, 1, 9, 1, 1, 6])


def test_gradients_are_refused_not_dropped() -> None:
    spec = next(iter(DECODERS.values()))
    with pytest.raises(CacheError, match="no gradients"):
        randomised(spec)(ids_for(spec, 1, 3), cache=KVCache(spec))


def test_a_wrong_batch_is_refused() -> None:
    spec = next(iter(DECODERS.values()))
    with pytest.raises(CacheError, match="holds 2 rows"), torch.no_grad():
        randomised(spec)(ids_for(spec, 3, 4), cache=KVCache(spec, batch=2))
    for name in ("batch", "length", "longest", "slack"):
        with pytest.raises(CacheError, match=f"^{name} = -1 of a cache must be 0 or more$"):
            KVCache(spec, **cast("Any", {name: -1}))


def test_a_pass_that_failed_leaves_a_cache_that_says_so() -> None:
    spec = next(iter(DECODERS.values()))
    model, ids = randomised(spec), ids_for(spec, 1, 7)

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    cache = KVCache(spec)
    handle = model.heads[0].register_forward_hook(broken)
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            model(ids, cache=cache)
        handle.remove()
        close(model(ids[:, -1:], cache=cache).logits, model(torch.cat((ids, ids[:, -1:]), 1)).logits[:, -1:])
        cache, handle = KVCache(spec), model.stack.blocks[-1].register_forward_hook(broken)
        with pytest.raises(KeyboardInterrupt):
            model(ids, cache=cache)
        handle.remove()
        with pytest.raises(CacheError, match="failed before its end"):
            model(ids, cache=cache)


def test_whose_a_cache_is_and_who_has_none() -> None:
    one, other = (shrink(preset(name).spec) for name in ("gpt2", "llama2-7b"))
    model, cache = randomised(other), KVCache(one)
    with torch.no_grad():
        randomised(one)(ids_for(one, 1, 4), cache=cache)
        with pytest.raises(CacheError, match="of another model"):
            model(ids_for(other, 1, 4), cache=cache)
        model(ids_for(other, 1, 4), cache=KVCache(loads(dumps(other))))
    with pytest.raises(CacheError, match="shows tokens later ones"):
        randomised(shrink(preset("bert-base").spec)).new_cache(1, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_what_is_held_in_another_dtype_is_seen_in_the_layers_own(dtype: torch.dtype) -> None:
    spec = next(iter(DECODERS.values()))
    model, ids = randomised(spec), ids_for(spec, 2, 9)
    cache = KVCache(spec, batch=2, dtype=dtype)
    with torch.no_grad():
        got = torch.cat([model(each, cache=cache).logits for each in ids.split(4, 1)], 1)
        close(got, model(ids).logits, 0.05)
