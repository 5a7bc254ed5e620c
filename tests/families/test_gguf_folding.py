"""Factors multiplied into weights: the model without them gives the same numbers, whatever has biases and whatever is tied."""

from __future__ import annotations

import pytest
import torch

from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.families.gguf.folding import folded
from anyformer.families.hf.mapping import same, shapes
from anyformer.layers import (
    AttentionSpec,
    FactorSpec,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    SSDSpec,
    Swish,
    TokensSpec,
)
from anyformer.model import Transformer
from anyformer.resizing import shrink
from anyformer.spec import BranchSpec, HeadSpec, ModelSpec, ScaleSpec, TableSpec
from tests.laws.models import randomised
from tests.laws.tolerance import FLOAT32, distance

BIASES = dict.fromkeys(("bias_query", "bias_key", "bias_value", "bias_output"), True)


def _factored(*, tied: bool, leaving: float = 0.3) -> ModelSpec:
    """Falcon-H1 with biases and a factor in every place where there may be one."""
    spec = shrink(preset("falcon-h1-0.5b").spec)
    spec = changed(spec, AttentionSpec, scale=ScaleSpec(factor=1.7, power=-0.5))
    spec = changed(spec, GQASpec, **BIASES)
    spec = changed(spec, GatedFeedForwardSpec, activation=Swish(beta=0.6), bias_in=True, bias_out=True)
    spec = changed(spec, SSDSpec, multipliers=(1.5, 0.3, 2.0, 0.7, 1.1), bias=True)
    spec = changed(spec, TokensSpec, scale=ScaleSpec(factor=0.3))
    spec = changed(spec, HeadSpec, scale=ScaleSpec(factor=leaving), bias=True)
    spec = changed(spec, BranchSpec, norm_in=FactorSpec(factor=0.8), norm_out=FactorSpec(factor=1.3))
    return changed(spec, TableSpec, shared="tokens" if tied else None)


def _same_logits(spec: ModelSpec) -> ModelSpec:
    """The folded specification, whose model was seen to give the logits of the other one."""
    model, folding = randomised(spec), folded(spec)
    held = model.state_dict()
    rows = [folding.row(same(name, name)) for name in shapes(folding.spec)]
    other = Transformer(folding.spec).eval()
    other.load_state_dict({row.theirs[0]: row.save((held[row.ours[0]],))[0] for row in rows})
    ids = torch.arange(20)[None] % spec.vocab_size
    with torch.no_grad():
        assert distance(other(ids).logits, model.eval()(ids).logits) < FLOAT32
    return folding.spec


@pytest.mark.parametrize("tied", [False, True])
def test_the_same_numbers_come_out(tied: bool) -> None:
    left = _same_logits(_factored(tied=tied))
    assert not any(isinstance(value, FactorSpec | Swish | SSDSpec) and _factor(value) for value in left.nested())
    assert all(head.scale is None for head in left.heads)


def _factor(value: FactorSpec | Swish | SSDSpec) -> bool:
    return bool(value.multipliers) if isinstance(value, SSDSpec) else True


def test_a_table_that_is_tied_takes_no_two_factors() -> None:
    left = _same_logits(_factored(tied=True, leaving=0.5))
    assert [head.scale for head in left.heads] == [ScaleSpec(factor=0.5)]


def test_a_plain_feed_forward_and_what_has_no_factors() -> None:
    plain = shrink(preset("pythia-70m").spec)
    assert folded(plain)[:2] == (plain, {})
    around = changed(plain, BranchSpec, norm_out=FactorSpec(factor=0.5), norm_in=FactorSpec(factor=0.7))
    assert any(isinstance(value, FeedForwardSpec) for value in around.nested())
    assert _same_logits(around) == changed(plain, BranchSpec, norm_in=None, norm_out=None)
