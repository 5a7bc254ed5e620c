"""Keys of blocks beside a window's: by a plain loop in a LLaMA, in a cache whose rows stand at different places, and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer.cache import KVCache, cache_kinds
from anyformer.errors import CacheError, InputError, SpecError
from anyformer.families import preset
from anyformer.families.compose import changed, window
from anyformer.generation.guesses import check_can_forget
from anyformer.layers import (
    ALiBiSpec,
    AttentionSpec,
    CompressorSpec,
    GQASpec,
    IndexerSpec,
    MarkedKeys,
    RMSNormSpec,
    RotarySpec,
    SharedKVSpec,
)
from anyformer.layers.causality import later_tokens_seen
from anyformer.memory import refusal
from anyformer.resizing import shrink
from anyformer.spec import Count, ModelSpec, Place, Width, Window, Workload, parameters
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

LLAMA = shrink(preset("llama3-8b").spec)
V4 = shrink(preset("deepseek-v4-flash").spec)
SIZE, EVERY, N = 5, 4, 23
HEADS = next(value for value in LLAMA.nested() if isinstance(value, GQASpec))
D = HEADS.head_dim or LLAMA.stack.d_model // HEADS.n_heads


def compressed(
    spec: ModelSpec = LLAMA, *, overlap: bool = False, top_k: int | None = None, every: int = EVERY
) -> ModelSpec:
    """The model with a window and blocks, of which an indexer chooses so many."""
    compressor = CompressorSpec(every=Window(every), overlap=overlap)
    indexer = top_k and IndexerSpec(
        n_heads=Count(16), head_dim=Width(8), top_k=Window(top_k), norm_key=None, compressor=compressor
    )
    return changed(spec, AttentionSpec, mask=window(SIZE), compressor=compressor, indexer=indexer)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def pooled(part: Any, x: Tensor, overlap: bool) -> list[Tensor]:
    """What is made of each whole block of x [token, d_model], by plain loops."""
    value, gate = x @ part.value.weight.T, x @ part.gate.weight.T
    width, found = part.norm.weight.shape[0], []
    for block in range(len(x) // EVERY):
        tokens = range(block * EVERY, (block + 1) * EVERY)
        half = slice(width, None) if overlap else slice(None)
        each = [(value[t, half], gate[t, half] + part.bias[t % EVERY, half]) for t in tokens]
        if overlap and block:
            before = range((block - 1) * EVERY, block * EVERY)
            each += [(value[t, :width], gate[t, :width] + part.bias[t % EVERY, :width]) for t in before]
        values, gates = (torch.stack(side) for side in zip(*each, strict=True))
        found.append(normed((gates.softmax(0) * values).sum(0), part.norm.weight))
    return found


def turned(rotary: RotarySpec, x: Tensor, position: int) -> Tensor:
    """A head's features x [head_dim] turned by a position: LLaMA's pairs are half a head apart."""
    half = len(x) // 2
    angles = position * torch.tensor(rotary.frequencies(len(x)), dtype=x.dtype)
    a, b = x[:half], x[half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()))


@pytest.mark.parametrize(
    ("overlap", "top_k"), [(False, None), (True, None), (True, 2)], ids=["heavy", "overlap", "chosen"]
)
def test_by_a_plain_loop_over_queries(overlap: bool, top_k: int | None) -> None:
    """What LLaMA's first attention gives each token, query by query: the window's keys, and all blocks that have ended."""
    spec = compressed(overlap=overlap, top_k=top_k)
    model, ids = randomised(spec), ids_for(spec, 1, N)
    mixer: Any = model.stack.blocks[0].sublayers[0].branches[0].mixer
    seen: list[tuple[Tensor, Tensor]] = []
    mixer.register_forward_hook(lambda _, given, out: seen.append((given[0][0], out[0][0])))
    heads, rotary, width = HEADS, HEADS.rotary, D
    assert rotary is not None
    with torch.no_grad():
        model(ids)
        x, given = seen[0]
        projection, group = mixer.projection, heads.n_heads // heads.kv_heads
        q, k, v = (
            (x @ each.weight.T).unflatten(-1, (-1, width)) for each in (projection.q, projection.k, projection.v)
        )
        blocks = [
            block.split((heads.kv_heads * width, heads.kv_heads * width))
            for block in pooled(mixer.compressor, x, overlap)
        ]
        best = chosen(mixer, x, rotary, top_k) if top_k else None
        rows = []
        for t in range(N):
            out = []
            for head in range(heads.n_heads):
                own = head // group
                query = turned(rotary, q[t, head], t)
                near = range(max(0, t - SIZE + 1), t + 1)
                pairs = [(turned(rotary, k[s, own], s), v[s, own]) for s in near]
                for i in range((t + 1) // EVERY):
                    if best is None or i in best[t]:
                        key, value = (side.unflatten(0, (-1, width))[own] for side in blocks[i])
                        pairs.append((turned(rotary, key, i * EVERY), value))
                keys, values = (torch.stack(side) for side in zip(*pairs, strict=True))
                out.append(((keys @ query) / math.sqrt(width)).softmax(0) @ values)
            rows.append(torch.cat(out) @ projection.o.weight.T)
        close(given, torch.stack(rows))


def chosen(mixer: Any, x: Tensor, rotary: RotarySpec, top_k: int) -> list[set[int]]:
    """The blocks that each query attends to, by a plain loop over scores."""
    indexer = mixer.indexer
    n_heads, width = indexer.spec.n_heads, indexer.spec.head_dim
    keys = [turned(rotary, key, i * EVERY) for i, key in enumerate(pooled(indexer.compressor, x, True))]
    found = []
    for t in range(len(x)):
        queries = (indexer.q.weight @ x[t]).unflatten(0, (n_heads, width))
        weights = indexer.weigh.weight @ x[t]
        scores = [
            float(sum(weights[h] * (turned(rotary, queries[h], t) @ key).relu() for h in range(n_heads)))
            for key in keys[: (t + 1) // EVERY]
        ]
        found.append(set(sorted(range(len(scores)), key=lambda i: -scores[i])[:top_k]))
    return found


CASES = {
    "heavy": compressed(),
    "overlap": compressed(overlap=True, every=3),
    "chosen": compressed(overlap=True, top_k=2),
    "deepseek-v4": V4,
}
each = pytest.mark.parametrize("spec", CASES.values(), ids=CASES)


@each
def test_rows_that_stand_at_different_places_fill_their_blocks_each_for_itself(spec: ModelSpec) -> None:
    """Padded on the left by several lengths, in chunks, and joined to rows that have read on: what whole rows give."""
    model, ids = randomised(spec), ids_for(spec, 3, N)
    mask = torch.ones_like(ids)
    mask[0, :6] = mask[2, :1] = 0
    with torch.no_grad():
        whole = model(ids, mask).logits
        cache, parts, at = KVCache(spec, batch=3, length=4, longest=N), [], 0
        for n in (9, 1, 1, 1, 4, 1, 6):
            parts.append(model(ids[:, at : at + n], mask[:, : at + n], cache=cache).logits)
            at += n
        close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()])
        alone = model(ids[:1, 6:]).logits
        close(alone, whole[:1, 6:])
        long, short = KVCache(spec, batch=1, length=N + 9), KVCache(spec, batch=2, length=N + 9)
        model(ids[:1], cache=long)
        model(ids[1:, :7], cache=short)
        long.join(short)
        later = ids_for(spec, 3, 9, seed=4)
        joined = torch.cat([model(step, cache=long).logits for step in later.split(1, 1)], 1)
        close(joined[:1], model(torch.cat((ids[:1], later[:1]), 1)).logits[:, N:])
        close(joined[1:], model(torch.cat((ids[1:, :7], later[1:]), 1)).logits[:, 7:])


def test_padding_between_chunks_is_of_no_block() -> None:
    """Behind a prompt that is shorter than others, before what is read next; with a mask that has no ring."""
    spec = changed(compressed(overlap=True, top_k=2), AttentionSpec, mask=window(2 * N))
    model, ids = randomised(spec), ids_for(spec, 2, N)
    mask = torch.ones_like(ids)
    mask[0, 7:11] = 0
    with torch.no_grad():
        whole, cache, parts, at = model(ids, mask).logits, KVCache(spec, batch=2, length=N), [], 0
        for n in (11, 1, 1, 3, 7):
            parts.append(model(ids[:, at : at + n], mask[:, : at + n], cache=cache).logits)
            at += n
        close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()])
        left = torch.cat((ids[:1, :7], ids[:1, 11:]), 1)
        close(model(left).logits[:, 7:], whole[:1, 11:])


@each
def test_rows_are_kept_repeated_and_not_taken_back(spec: ModelSpec) -> None:
    model, ids = randomised(spec), ids_for(spec, 2, N)
    with torch.no_grad():
        cache = KVCache(spec, batch=2, length=N)
        model(ids[:, :10], cache=cache)
        cache.select([1, 0, 1])
        rows = ids[[1, 0, 1]]
        close(model(rows[:, 10:], cache=cache).logits, model(rows).logits[:, 10:])
        with pytest.raises(CacheError, match="a state holds all tokens as one sum"):
            cache.rewind(1)
        cache.rewind(0)


def test_a_cache_holds_a_window_and_one_for_each_block() -> None:
    """Of the shrunk DeepSeek-V4: rings of 5 keys of 16 numbers, blocks, 16 more of an index, and what waits, in float32."""
    kinds = {kind.kind: kind for kind in cache_kinds(V4, batch=2, seq_len=41, source_len=0, dtype=torch.bfloat16)}
    assert kinds["window of 5"].nbytes == 3 * 2 * 5 * 16 * 2
    assert kinds["blocks of 5"].nbytes == 2 * 2 * (41 // 5) * 16 * 2
    assert kinds["blocks of 4"].nbytes == 2 * (41 // 4) * (16 + 16) * 2
    heavy, sparse = 2 * 4 * 16 + 1, 2 * 2 * 7 * 32 + 1
    assert kinds["state"].nbytes == 2 * 4 * (2 * heavy + sparse)
    assert KVCache(V4, batch=2, length=41, dtype=torch.bfloat16).nbytes == sum(kind.nbytes for kind in kinds.values())
    cache = KVCache(V4, batch=2, length=41)
    before = cache.nbytes
    with torch.no_grad():
        for chunk in ids_for(V4, 2, 41).split(9, 1):
            randomised(V4)(chunk, cache=cache)
    assert cache.nbytes == before


def test_pairs_are_counted_as_they_are_seen() -> None:
    for every, most in ((4, None), (4, 2), (3, 1), (5, 3)):
        compressor = CompressorSpec(every=Window(every))
        for past, query in ((0, 23), (7, 1), (6, 11), (30, 5), (0, 2)):
            slow = sum(min((t + 1) // every, most or 10**9) for t in range(past, past + query))
            assert compressor.pairs(query, past, most) == slow


def test_flops_are_of_the_maps_and_of_the_blocks_that_are_read() -> None:
    """By hand: two maps of 2 · 16 features of two heads of 16, and 16 numbers a head and a pair, twice."""
    heads, d, width = HEADS, LLAMA.stack.d_model, D
    load = Workload(batch=2, query=N)
    more = compressed(overlap=True).cost(Place(), load).flops
    more -= changed(LLAMA, AttentionSpec, mask=window(SIZE)).cost(Place(), load).flops
    seen = sum((t + 1) // EVERY for t in range(N))
    each = 2 * 2 * N * 2 * (2 * 2 * heads.kv_heads * width) * d + 2 * 2 * heads.n_heads * seen * 2 * width
    assert more == len(LLAMA.stack.blocks) * each


def test_parameters_by_hand() -> None:
    d, width = LLAMA.stack.d_model, 2 * HEADS.kv_heads * D
    more = parameters(compressed(overlap=True)).total - parameters(LLAMA).total
    assert more == len(LLAMA.stack.blocks) * (2 * 2 * width * d + EVERY * 2 * width + width)


def test_a_prompt_shorter_than_a_block_reads_no_block() -> None:
    model, ids = randomised(compressed(every=9)), ids_for(LLAMA, 2, 8)
    plain = randomised(changed(LLAMA, AttentionSpec, mask=window(SIZE)))
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in plain.named_parameters():
            value.copy_(own[name])
        close(model(ids).logits, plain(ids).logits)
    assert later_tokens_seen(model.spec.stack) is None


ALONE = CompressorSpec(every=Window(4))
INDEXER = IndexerSpec(n_heads=Count(2), head_dim=Width(8), top_k=Window(2))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: changed(LLAMA, AttentionSpec, compressor=ALONE, indexer=INDEXER),
            "chooses among other keys than there are",
        ),
        (
            lambda: changed(LLAMA, AttentionSpec, indexer=INDEXER.but(compressor=ALONE)),
            "chooses among other keys than there are",
        ),
        (
            lambda: changed(LLAMA, AttentionSpec, compressor=ALONE, scores=(ALiBiSpec(),)),
            "beside which there are no scores",
        ),
        (lambda: changed(LLAMA, AttentionSpec, compressor=ALONE, keys="k"), "there are no keys of other layers"),
        (lambda: changed(LLAMA, AttentionSpec, compressor=ALONE, mask=MarkedKeys()), "there are no marks"),
        (
            lambda: changed(shrink(preset("deepseek-v3").spec), AttentionSpec, compressor=ALONE),
            "makes keys that turn, and values, and MLA stores others",
        ),
        (lambda: SharedKVSpec(n_heads=Count(4), head_dim=Width(8), out_groups=Count(3)), "must divide n_heads = 4"),
        (lambda: SharedKVSpec(n_heads=Count(4), head_dim=Width(8), out_groups=Count(2)), "give out_rank"),
    ],
)
def test_refused_in_a_line(make: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_what_needs_tokens_taken_back_or_cut_is_refused() -> None:
    with pytest.raises(InputError, match="layers with a state"):
        check_can_forget(V4)
    assert "reads blocks of 4 tokens" in str(refusal(compressed()))
    assert RMSNormSpec().kind == "RMSNorm"
