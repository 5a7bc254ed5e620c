"""Queries that grow with their positions: by hand, and against the steps that transformers' Ministral 3 takes. What heads learn
of it is held against Mistral Large 4's class by the laws, and here by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from anyformer import build
from anyformer.errors import SpecError
from anyformer.families import preset
from anyformer.layers import AttentionSpec, LogN, LogSteps, QueryScaleSpec, SSMaxSpec
from anyformer.resizing import shrink
from anyformer.spec import Length
from tests.laws.models import ids_for, randomised
from tests.laws.tolerance import close, distance
from tests.laws.weights import edited

GROWS = LogN(length=Length(5), growth=0.5)
STEPS = LogSteps(length=Length(4), growth=0.5, start=1)


def by_hand(scale: QueryScaleSpec, n: int) -> list[float]:
    """Return the factors of n tokens."""
    if isinstance(scale, LogN) and scale.growth:
        return [1 + 0.5 * math.log(max(1.0, i / 5)) for i in range(1, n + 1)]
    if isinstance(scale, LogN):
        return [max(1.0, math.log(i) / math.log(5)) for i in range(1, n + 1)]
    return [1 + 0.5 * math.log(1 + (i + 1) // 4) for i in range(n)]


@pytest.mark.parametrize("scale", [LogN(length=Length(5)), GROWS, STEPS], ids=["log-n", "log", "steps"])
def test_queries_grow_with_their_position(scale: QueryScaleSpec) -> None:
    """Each token by its place in its own text: the first row has four of padding before it."""
    spec = shrink(preset("llama-7b").spec)
    plain, grown = (edited(spec, AttentionSpec, lambda a, s=s: a.but(query_scale=s)) for s in (None, scale))
    model, ids = randomised(plain), ids_for(spec, 2, 16)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    factors = torch.tensor([[1.0] * 4 + by_hand(scale, 12), by_hand(scale, 16)])
    for layer in model.stack.blocks:
        projection = layer.sublayers[0].branches[0].mixer.projection
        project = projection.project

        def longer(*given: Any, project: Any = project) -> Any:
            q, kept = project(*given)
            return q * factors[:, None, :, None], kept

        projection.__dict__["project"] = longer
    with torch.no_grad():
        found = randomised(grown)(ids, mask).logits[mask.bool()]
        close(found, model(ids, mask).logits[mask.bool()])
        short = randomised(grown)(ids[:, :3]).logits
        close(short, randomised(plain)(ids[:, :3]).logits)
        assert distance(found, randomised(plain)(ids, mask).logits[mask.bool()]) > 0.01


@pytest.mark.parametrize("growth", [0.1, 0.7])
def test_steps_are_those_of_ministral(growth: float) -> None:
    positions = torch.arange(500)[None]
    ours = LogSteps(length=Length(32), growth=growth).factors(positions)
    close(ours, get_llama_4_attn_scale(positions, growth, 32)[:, 0, :, 0])
    assert ours[0, :32].eq(1).all()
    later = LogSteps(length=Length(32), growth=growth, start=1).factors(positions)
    close(later[:, :-1], ours[:, 1:])


def test_each_head_learns_how_its_queries_grow() -> None:
    """At first they do not; s and b of each are of its queries alone."""
    spec = shrink(preset("llama-7b").spec)
    grown = edited(spec, AttentionSpec, lambda a: a.but(query_scale=SSMaxSpec()))
    model, plain, ids = randomised(grown), randomised(spec), ids_for(spec, 2, 9)
    weights = {name: x for name, x in model.state_dict().items() if "query_scale" not in name}
    plain.load_state_dict(weights)
    learned = torch.tensor([0.5, -0.3, 0.0, 2.0]), torch.tensor([1.0, 0.5, 1.0, -1.0])
    factors = learned[0][:, None] * torch.arange(1, 10).log() + learned[1][:, None]
    for layer in plain.stack.blocks:
        projection = layer.sublayers[0].branches[0].mixer.projection
        project = projection.project

        def longer(*given: Any, project: Any = project) -> Any:
            q, kept = project(*given)
            return q * factors[None, :, :, None], kept

        projection.__dict__["project"] = longer
    with torch.no_grad():
        for layer in model.stack.blocks:
            scale = layer.sublayers[0].branches[0].mixer.query_scale
            assert scale.scale.shape == scale.bias.shape == (4,)
            scale.scale.copy_(learned[0])
            scale.bias.copy_(learned[1])
        close(model(ids).logits, plain(ids).logits)
    start = build(grown, seed=0).stack.blocks[0].sublayers[0].branches[0].mixer.query_scale
    assert start.scale.eq(0).all()
    assert start.bias.eq(1).all()


def test_one_token_has_no_logarithm() -> None:
    with pytest.raises(SpecError, match=r"LogN.length = 1 must be at least 2 tokens"):
        LogN(length=Length(1))
