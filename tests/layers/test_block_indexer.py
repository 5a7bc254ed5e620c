"""MiniMax sparse attention: the choice of blocks against that of transformers' class and of a plain loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.minimax_m3_vl import MiniMaxM3VLTextConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLIndexer

import anyformer as af
from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    BlockIndexerSpec,
    Causal,
    CompressorSpec,
    GQASpec,
    Mask,
    RMSNormSpec,
    RotarySpec,
    SlidingWindow,
)
from anyformer.layers.block_indexer import BlockIndexer
from anyformer.layers.context import ForwardContext
from anyformer.layers.rotary import Rotation
from anyformer.layers.tokens import plain_tokens
from anyformer.resizing import resize, shrink
from anyformer.spec import Count, ModelSpec, Place, Width, Window, Workload, parameters
from tests.laws.models import ids_for, randomised, waiving
from tests.laws.tolerance import close, distance

NORM = RMSNormSpec(weight_offset=1.0, cast="after")
CHOICE = BlockIndexerSpec(
    n_heads=Count(2),
    head_dim=Width(16),
    top_k=Window(3),
    every=Window(4),
    near=Count(2),
    norm_query=NORM,
    norm_key=NORM,
)


def with_choice(choice: BlockIndexerSpec | None = CHOICE, mask: Mask | None = None) -> ModelSpec:
    spec = changed(shrink(preset("llama3-8b").spec), AttentionSpec, indexer=choice)
    return spec if mask is None else changed(spec, AttentionSpec, mask=mask)


@pytest.mark.parametrize("near", [1, 2, 3])
def test_it_chooses_what_transformers_and_a_loop_choose(near: int) -> None:
    """For each of its heads, on vectors of no model: transformers' blocks by their numbers, the loop's key by key."""
    n = 30
    config = MiniMaxM3VLTextConfig(
        hidden_size=24,
        index_n_heads=2,
        index_head_dim=16,
        index_block_size=4,
        index_topk_blocks=3,
        index_local_blocks=near,
    )
    theirs, spec = MiniMaxM3VLIndexer(config, 0), CHOICE.but(near=Count(near))
    ours = BlockIndexer(spec, Place(d_model=24, shape=(24,)))
    torch.manual_seed(0)
    names = {"q": theirs.q_proj, "k": theirs.k_proj, "norm_query": theirs.q_norm, "norm_key": theirs.k_norm}
    for name, module in names.items():
        (tensor,) = module.state_dict().values()
        tensor.normal_()
        getattr(ours, name).weight.data.copy_(tensor)
    x = torch.randn(2, n, 24)
    angles = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    turned = torch.cat((angles, angles), -1)[None]
    blocks = theirs(x, (turned.cos(), turned.sin()), None, torch.arange(n).expand(2, -1))
    context = ForwardContext(tokens=plain_tokens(n, x.device), kernels={})
    rotary, seen = Rotation(RotarySpec(fraction=0.5), None), torch.ones(n, n, dtype=torch.bool).tril()[None, None]
    keys = ours.keys(x, rotary, context)
    got = (ours(x, x, keys, context.tokens, seen, rotary, context) == 0) & seen
    q = ours.norm_query(ours.q(x).unflatten(-1, (2, 16))).transpose(1, 2)  # type: ignore[misc]
    scores = rotary.rotate(q, context) @ keys[:, None].mT
    for row in range(2):
        for head in range(2):
            for i in range(n):
                best = {b: scores[row, head, i, 4 * b : min(4 * b + 4, i + 1)].max().item() for b in range(i // 4 + 1)}
                near_ones = {b for b in best if i // 4 - b < near}
                chosen = sorted(best, key=lambda b: (b not in near_ones, -best[b]))[:3]
                assert {b for b in blocks[row, head, i].tolist() if b >= 0} == set(chosen)
                assert got[row, head, i].nonzero()[:, 0].tolist() == [j for j in range(i + 1) if j // 4 in chosen]


WINDOW = Causal() & SlidingWindow(size=Window(14))


@pytest.mark.parametrize("mask", [None, WINDOW], ids=["full", "ring"])
def test_cached_is_uncached_and_padding_and_packing_change_nothing(mask: Mask | None) -> None:
    spec = with_choice(mask=mask)
    model, ids = randomised(spec), ids_for(spec, 2, 33)
    plain = randomised(changed(spec, AttentionSpec, indexer=None))
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if ".indexer." not in k})
    assert distance(model(ids).logits, plain(ids).logits) > 0.01
    with torch.no_grad():
        whole = model(ids).logits
        cache = KVCache(spec, batch=2, length=33)
        pieces = [model(piece, cache=cache).logits for piece in ids.split((17, 1, 3, 1, 1, 10), 1)]
        close(torch.cat(pieces, 1), whole)
        close(model(ids, kernel="eager").logits, model(ids, kernel="sdpa").logits)
        padded = torch.cat((ids.new_zeros(2, 3), ids), 1)
        real = torch.ones_like(padded)
        real[:, :3] = 0
        close(model(padded, attention_mask=real).logits[:, 3:], whole)
        documents = torch.cat((torch.ones_like(ids), torch.full_like(ids, 2)), 1)
        close(model(torch.cat((ids.flip(1), ids), 1), attention_mask=documents).logits[:, 33:], whole)


def test_positions_that_leave_numbers_out() -> None:
    """Blocks are counted by them: tokens far apart lie in blocks of their own, also where there are as many as tokens."""
    spec = with_choice(CHOICE.but(near=Count(1)))
    model, ids = randomised(spec), ids_for(spec, 1, 12)
    positions = (torch.arange(12) // 2 * 4 + torch.arange(12) % 2)[None] * 3  # 0, 3, 12, 15, 24, …: 0, 0, 3, 3, 6, 6, …
    seen: list[Any] = []
    indexer = next(each for each in model.modules() if isinstance(each, BlockIndexer))
    indexer.register_forward_hook(lambda _, given, out: seen.append(out))
    with torch.no_grad():
        model(ids, attention_mask=torch.ones_like(ids), position_ids=positions)
    of_last = (seen[0][0, :, -1] == 0).unflatten(-1, (6, 2))
    assert (of_last[..., 0] == of_last[..., 1]).all()
    assert (of_last[..., 0].sum(-1) == 3).all()
    assert of_last[:, -1].all()


@pytest.mark.parametrize(("query", "past"), [(30, 0), (1, 29), (7, 11), (3, 2)])
def test_its_cost_is_all_pairs_scored_and_the_chosen_attended_to(query: int, past: int) -> None:
    attention = next(value for value in with_choice().nested() if isinstance(value, AttentionSpec))
    dense = attention.but(indexer=None)
    place, work = Place(d_model=32), Workload(batch=1, query=query, past=past, causal_exact=True)
    terms, of_all = attention.cost(place, work), dense.cost(place, work)
    pairs = sum(i + 1 for i in range(past, past + query))
    chosen = sum(min(i + 1, 2 * 4 + i % 4 + 1) for i in range(past, past + query))
    assert terms["indexer"] == 2 * query * (2 * 16 * 32 + 16 * 32)
    assert terms["indexer scores"] == pairs * 2 * 2 * 16
    assert terms["scores"] * pairs == of_all["scores"] * chosen


def test_of_other_masks_the_pairs_are_at_most() -> None:
    assert CHOICE.chosen_pairs(WINDOW, 20, 0) == sum(min(i + 1, 12) for i in range(20))


def test_no_gradient_reaches_it() -> None:
    spec = with_choice()
    model, ids = randomised(spec), ids_for(spec, 1, 20)
    model(ids).logits.sum().backward()
    without = {name for name, weight in model.named_parameters() if weight.grad is None}
    assert without == {name for name, _ in model.named_parameters() if ".indexer." in name}
    assert without == waiving(model, "gradients")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: CHOICE.but(near=Count(4)), "BlockIndexer.near = 4 must be from 1 to top_k = 3"),
        (
            lambda: CHOICE.but(compressor=CompressorSpec(every=Window(4))),
            "BlockIndexer.compressor = .* makes blocks that are keys",
        ),
        (
            lambda: AttentionSpec(projection=GQASpec(n_heads=Count(3)), indexer=CHOICE),
            "Attention.indexer = .* makes 2 choices, which do not divide 3 heads",
        ),
        (lambda: CHOICE.but(gated=True), r"BlockIndexer\.gated = True is of blocks with a key of their own"),
    ],
)
def test_refused_in_a_line(make: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_file_holds_it_and_sizes_change() -> None:
    spec = preset("minimax-m3").spec
    assert af.loads(af.dumps(spec)) == spec
    for small in (shrink(spec), *(resize(spec, d_model=d_model, n_layers=5) for d_model in (512, 1536, 12_288))):
        for attention in small.nested(AttentionSpec):
            found, heads = attention.indexer, attention.projection
            assert isinstance(heads, GQASpec)
            if found is not None:
                assert isinstance(found, BlockIndexerSpec)
                assert found.n_heads == heads.kv_heads
                assert found.top_k * found.every in (4 * 5, 16 * 128)
        assert parameters(small).total > 0
