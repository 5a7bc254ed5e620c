"""Law 5: padding and packing change nothing for the real tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.cache import KVCache
from anyformer.errors import InputError
from anyformer.families import preset
from anyformer.layers import AxialPositionsSpec, FactorisedPositionsSpec
from anyformer.layers.embedding import learned_positions
from anyformer.new_tokens import make_tokens
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from tests.laws.combinations import decoders, dropping_tokens, summing_blocks
from tests.laws.models import every_of_one_stack, every_preset, ids_for, one_chunk, per_token, randomised, runner
from tests.laws.tolerance import close
from tests.sample import combinations

N = 14
of_any_kind = decoders().flatmap(lambda spec: st.sampled_from([spec, dropping_tokens(spec), summing_blocks(spec)]))


def check_padded(spec: ModelSpec, left: int, right: int, garbage: int) -> None:
    model, ids = randomised(spec), ids_for(spec, 1, N)
    run = runner(model)
    pad = torch.full((1, 1), garbage % spec.vocab_size)
    padded = torch.cat((pad.expand(1, left), ids, pad.expand(1, right)), 1)
    mask = torch.cat((torch.zeros(1, left), torch.ones(1, N), torch.zeros(1, right)), 1).long()
    with torch.no_grad():
        found, expected = run(padded, mask).outputs, run(ids).outputs
    for head in (head for head in spec.heads if not head.by_name):
        answer = found[head.name]
        close(answer if head.pool else answer[:, left : left + N], expected[head.name])


def check_packed(spec: ModelSpec, by_positions: bool) -> None:
    """Three documents in one row equal the three alone; they are told apart by numbers, or by positions that start again."""
    model, sizes = randomised(spec), (5, 1, 8)
    ids = ids_for(spec, 2, sum(sizes))
    documents = torch.repeat_interleave(torch.tensor([1, 2, 3]), torch.tensor(sizes))[None].expand(2, -1)
    positions = torch.cat([torch.arange(size) for size in sizes])[None].expand(2, -1)
    told = {"position_ids": positions} if by_positions else {"attention_mask": documents}
    with torch.no_grad():
        packed = model(ids, heads=per_token(spec), **told).outputs
        alone = [model(document).outputs for document in ids.split(sizes, 1)]
    for head in per_token(spec):
        close(packed[head], torch.cat([one[head] for one in alone], 1))
    if any(head.pool and not head.by_name for head in spec.heads):
        with pytest.raises(InputError, match="these rows hold several documents"):
            model(ids, **told)


@every_preset
def test_presets_padded(spec: ModelSpec) -> None:
    check_padded(one_chunk(spec), 0, 6, garbage=3)
    check_padded(one_chunk(spec), 6, 0, garbage=3)


@every_of_one_stack
def test_presets_packed(spec: ModelSpec) -> None:
    check_packed(one_chunk(spec), by_positions=False)
    check_packed(one_chunk(spec), by_positions=True)


@given(spec=of_any_kind, left=st.integers(0, 7), right=st.integers(0, 7), garbage=st.integers(0, 36))
@settings(max_examples=combinations(40), deadline=None)
def test_combinations_padded(spec: ModelSpec, left: int, right: int, garbage: int) -> None:
    check_padded(spec, left, right, garbage)


@given(spec=of_any_kind, by_positions=st.booleans())
@settings(max_examples=combinations(30), deadline=None)
def test_combinations_packed(spec: ModelSpec, by_positions: bool) -> None:
    check_packed(spec, by_positions)


def test_source_padding_changes_nothing() -> None:
    model = randomised(shrink(preset("transformer-base").spec))
    source, target = ids_for(model.spec, 2, 9), ids_for(model.spec, 2, 6, seed=4)
    padded = torch.cat((source, torch.full((2, 5), 8)), 1)
    mask = torch.cat((torch.ones(2, 9), torch.zeros(2, 5)), 1).long()
    with torch.no_grad():
        close(model(padded, mask, decoder_input_ids=target).logits, model(source, decoder_input_ids=target).logits)


@pytest.mark.parametrize("n", [1, 23, 16_384])
@pytest.mark.parametrize("past", [False, True])
def test_positions_are_counted_in_each_document(n: int, past: bool) -> None:
    """One after the other, documents in any order and padding anywhere; the last one that a cache holds goes on."""
    generator = torch.Generator().manual_seed(n)
    mask = torch.randint(0, 4, (3, n), generator=generator)
    cache, last = None, [(-1, -1)] * 3
    if past:
        last = [(6, 1), (0, 3), (-1, -1)]
        cache = KVCache(shrink(preset("gpt2").spec), batch=3)
        cache.last, cache.plain = torch.tensor(last).T[..., None], False
    expected = torch.zeros_like(mask)
    for row, (position, document) in enumerate(last):
        next_of = {document: position + 1}
        for i, each in enumerate(mask[row].tolist()):
            if each:
                expected[row, i] = next_of.get(each, 0)
                next_of[each] = next_of.get(each, 0) + 1
    assert torch.equal(make_tokens(mask, mask, cache=cache).position, expected)


@pytest.mark.parametrize("rows", [(1, 2), (2, 3), (3, 2)])
def test_a_fact_of_other_rows_is_refused(rows: tuple[int, int]) -> None:
    """And one that all rows share is not."""
    batch, others = rows
    ids, mask = torch.ones(batch, 4, dtype=torch.long), torch.ones(others, 4, dtype=torch.long)
    mask[0, 0] = 0
    with pytest.raises(InputError, match=rf"attention_mask has shape \({others}, 4\); token ids have \({batch}, 4\)"):
        make_tokens(ids, mask)
    assert make_tokens(ids, mask[:1]).position.tolist() == [[0, 0, 1, 2]]


@pytest.mark.parametrize("name", ["gpt2", "bart-base", "sparse-transformer-enwik8", "reformer-enwik8"])
def test_positions_that_there_are_not(name: str) -> None:
    """Refused where a row is padded as where none is, of a decoder and of an encoder."""
    spec = shrink(preset(name).spec)
    learned = learned_positions(spec)
    shapes = (value.shape for value in spec.nested() if isinstance(value, FactorisedPositionsSpec | AxialPositionsSpec))
    n = math.prod(next(shapes)) if learned is None else learned
    model, ids = randomised(spec), ids_for(spec, 2, n + 2)
    decoder = {} if spec.encoder is None else {"decoder_input_ids": ids[:, :3]}
    mask = torch.ones_like(ids)
    mask[:, :2] = 0
    with torch.no_grad():
        model(ids, mask, **decoder)
        mask[0, 1] = 1
        with pytest.raises(InputError, match=f"a sequence of {n + 1} tokens goes beyond the {n} "):
            model(ids, mask, **decoder)
