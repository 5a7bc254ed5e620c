"""Layers on blocks of tokens: rows that are padded or packed in a cache, blocks of keys beside them, what is inside them."""

from __future__ import annotations

import pytest
import torch

from anyformer import layers as L
from anyformer.cache import KVCache
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.resizing import shrink
from anyformer.spec import BlockSpec, BranchSpec, ModelSpec, SublayerSpec, Window
from anyformer.training.step.routing import routers_of
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close

EVERY = Window(3)


def short(name: str, **fields: object) -> ModelSpec:
    """Have a preset's layers but its first on blocks of three tokens."""
    spec = shrink(preset(name).spec)
    first, *others = spec.stack.blocks
    mixer = L.ShortenedSpec(every=EVERY, blocks=tuple(others)).but(**fields)
    layer = BlockSpec(sublayers=(SublayerSpec(branches=(BranchSpec(mixer=mixer),)),))
    return spec.but(stack=spec.stack.but(blocks=(first, layer)))


def decoded(spec: ModelSpec, mask: torch.Tensor, sizes: list[int]) -> None:
    """Hold decoding in chunks against one pass, for real tokens."""
    model, ids = randomised(spec), ids_for(spec, *mask.shape)
    cache = KVCache(spec, batch=len(mask), length=mask.shape[1])
    with torch.no_grad():
        chunks = zip(ids.split(sizes, 1), mask.split(sizes, 1), strict=True)
        parts = [model(chunk, of_chunk, cache=cache).logits for chunk, of_chunk in chunks]
        whole = model(ids, mask).logits
    close(torch.cat(parts, 1)[mask > 0], whole[mask > 0])


def test_rows_whose_blocks_end_apart_read_their_own() -> None:
    mask = torch.ones(2, 12).long()
    mask[0, :2], mask[1, 7] = 0, 0
    decoded(short("llama2-7b"), mask, [1] * 12)
    decoded(short("llama2-7b"), mask, [5, 4, 3])


@pytest.mark.parametrize("name", ["mamba-130m", "llama2-7b"])
def test_a_document_may_begin_behind_another_in_a_cache(name: str) -> None:
    mask = torch.tensor([[1] * 7 + [2] * 8, [1] * 3 + [2] * 12])
    decoded(short(name), mask, [8, 1, 1, 1, 4])


def test_blocks_of_keys_may_stand_beside_it() -> None:
    spec = short("llama2-7b")
    first, layer = spec.stack.blocks
    beside = changed(first, L.AttentionSpec, compressor=L.CompressorSpec(every=EVERY))
    decoded(spec.but(stack=spec.stack.but(blocks=(beside, layer))), torch.ones(2, 11).long(), [4, 1, 1, 5])
    with pytest.raises(SpecError, match="read keys of blocks of tokens, and are given blocks already"):
        changed(spec, L.AttentionSpec, compressor=L.CompressorSpec(every=EVERY))


def test_routers_inside_are_those_of_the_notes() -> None:
    model = randomised(short("mixtral-8x7b"))
    notes = [note for note in model(ids_for(model.spec, 1, 9)).notes if "router_logits" in note]
    assert len(routers_of(model)) == len(notes) == 2
    assert [note["router_logits"].shape[1] for note in notes] == [9, 3]


def test_a_stack_counts_the_branches_inside() -> None:
    assert short("llama2-7b").stack.n_branches == 2 + 1 + 2


def test_what_it_takes() -> None:
    with pytest.raises(SpecError, match=r"Shortened.every = 1 must be 2 or more"):
        L.ShortenedSpec(every=Window(1), blocks=shrink("llama2").stack.blocks)
