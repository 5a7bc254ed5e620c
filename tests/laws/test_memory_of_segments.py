"""Segment recurrence: a text in segments with a memory is one pass in which each token sees its segment and the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyformer.errors import CacheError
from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Mask, Tokens
from anyformer.memory import SegmentMemory
from anyformer.model import build
from anyformer.recipe import CausalLM
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec
from anyformer.text import EncodedCorpus
from anyformer.training.data.segments import SegmentValidation
from anyformer.training.objectives.causal.loss import CausalObjective
from anyformer.training.run.evaluation import evaluate
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import FLOAT32, VISIBLE, close, distance

RELATIVE = ("gopher-44m", "llama2-7b", "bloom-560m", "gemma2-2b", "deepseek-v2-lite", "falcon-7b")
LENGTH, SEGMENT = 29, 6


class SegmentAndMemory(Mask):
    """Not before so many tokens ahead of the query's own segment."""

    size: int
    memory: int

    def __call__(self, query: Tokens, key: Tokens, head: Tensor) -> Tensor:
        return key.position >= query.position // self.size * self.size - self.memory


def one_pass(spec: ModelSpec, memory: int) -> ModelSpec:
    attention = next(value for value in spec.nested() if isinstance(value, AttentionSpec))
    masks = {value.mask for value in spec.nested() if isinstance(value, AttentionSpec)}
    assert attention.mask in masks
    for mask in masks:
        spec = _masked(spec, mask, mask & SegmentAndMemory(size=SEGMENT, memory=memory))
    return spec


def _masked(value: Any, old: Mask, new: Mask) -> Any:
    blocks = tuple(
        changed(b, AttentionSpec, mask=new) if any(getattr(v, "mask", None) == old for v in b.nested()) else b
        for b in value.stack.blocks
    )
    return value.but(stack=value.stack.but(blocks=blocks))


@pytest.mark.parametrize("memory", [0, 1, 4, 6, 17, 100])
@pytest.mark.parametrize("name", RELATIVE)
@torch.no_grad()
def test_segments_with_a_memory_are_one_pass(name: str, memory: int) -> None:
    spec = shrink(preset(name).spec)
    model, ids = randomised(spec), ids_for(spec, 2, LENGTH)
    whole = build(one_pass(spec, memory), seed=None)
    whole.load_state_dict(model.state_dict())
    past = SegmentMemory(spec, memory, batch=2)
    pieces = [model(segment, cache=past).logits for segment in ids.split(SEGMENT, 1)]
    close(torch.cat(pieces, 1), whole(ids).logits)
    held = [value.shape[-2] for store in past.stores for value in store.held.values()]
    assert set(held) == {min(memory, LENGTH)}
    if memory == 0:
        assert distance(whole(ids).logits, model(ids).logits) > VISIBLE * FLOAT32
    if memory >= LENGTH:
        close(torch.cat(pieces, 1), model(ids).logits)


@torch.no_grad()
def test_padding_beside_a_memory() -> None:
    spec = shrink(preset("gopher-44m").spec)
    model, ids = randomised(spec), ids_for(spec, 1, 12)
    padded = torch.cat((torch.full((1, 3), 7), ids), 1)
    mask = torch.cat((torch.zeros(1, 3), torch.ones(1, 12)), 1).long()
    past = SegmentMemory(spec, 50)
    first = model(padded[:, :8], mask[:, :8], cache=past).logits
    second = model(padded[:, 8:], mask[:, 8:], cache=past).logits
    close(torch.cat((first, second), 1)[:, 3:], model(ids).logits)


def test_a_segment_has_its_gradient_and_the_memory_has_none() -> None:
    """Of the first segment's tokens, whose table rows the second does not use, nothing is learnt from the second's loss."""
    spec = shrink(preset("gopher-44m").spec)
    spec = changed(spec, type(spec.heads[0]), table=spec.heads[0].table and spec.heads[0].table.but(shared=None))
    model, past = randomised(spec), SegmentMemory(spec, 8)
    first, second = torch.arange(1, 9)[None], torch.arange(20, 28)[None]
    model(first, cache=past)
    out = model(second, cache=past)
    out.last_hidden_state.square().sum().backward()
    table = next(
        p.grad for n, p in model.named_parameters() if n.startswith("stack.embedding") or n == "shared.tokens.weight"
    )
    assert table is not None
    assert table[second[0]].abs().amax(-1).min() > 0
    assert table[first[0]].abs().max() == 0
    alone = model(second).last_hidden_state
    assert distance(out.last_hidden_state.detach(), alone.detach()) > VISIBLE * FLOAT32


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt2", r"positions are absolute \(LearnedPositions\)"),
        ("bart-base", "reads an encoder's text beside its own"),
    ],
)
def test_models_that_cannot_are_refused(name: str, said: str) -> None:
    with pytest.raises(CacheError, match=said):
        SegmentMemory(shrink(preset(name).spec), 4)


def test_a_memory_is_not_rewound() -> None:
    with pytest.raises(CacheError, match="cannot be rewound"):
        SegmentMemory(shrink(preset("gopher-44m").spec), 4).rewind(1)


def test_evaluation_of_documents() -> None:
    """With a memory of all that came before, the windows do not show; without, they do."""
    spec = shrink(preset("gopher-44m").spec)
    model = randomised(spec)
    tokens = ids_for(spec, 1, 50)[0].numpy().astype(np.uint16)
    encoded = EncodedCorpus(tokens, np.array([0, 31, 50]), np.array([40, 25]), spec.vocab_size, "")
    whole, cut, remembered = (
        evaluate(model, CausalObjective(CausalLM(), spec), SegmentValidation(encoded, length, memory))
        for length, memory in ((64, 0), (5, 0), (5, 64))
    )
    assert (whole.tokens, whole.nbytes) == (48, 65)
    assert remembered.loss == pytest.approx(whole.loss, rel=1e-5)
    assert abs(cut.loss - whole.loss) > 1e-2 * whole.loss
