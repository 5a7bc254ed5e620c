"""A value with some fields changed: held to its ranges as one that is made anew, and itself where nothing changes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import anyformer as af
from anyformer.errors import SpecError
from anyformer.families.compose import changed, edited
from anyformer.layers import And, Causal, GQASpec, RMSNormSpec, RotarySpec
from anyformer.spec import BlockSpec, Count, HeadSpec, Spec, StackSpec, Width, nesting

LLAMA = af.preset("llama2-7b").spec
ATTENTION = next(LLAMA.nested(GQASpec))


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (ATTENTION, {"n_heads": 0}),
        (ATTENTION, {"n_heads": 2**20}),
        (ATTENTION, {"n_heads": True}),
        (ATTENTION, {"n_kv_heads": 3}),  # by the part's own rule
        (ATTENTION, {"rotary": RMSNormSpec()}),
        (LLAMA.stack, {"blocks": ()}),
        (LLAMA.stack, {"blocks": LLAMA.stack.blocks * 400}),
        (LLAMA, {"heads": (HeadSpec(name="a"), HeadSpec(name="a"))}),
        (Causal() & Causal(), {"masks": tuple(And(masks=(Causal(),) * 256) for _ in range(200)) * 6}),
        (
            And(masks=(And(masks=(Causal(),) * 255),) * 255),
            {"masks": (And(masks=(And(masks=(Causal(),) * 255),) * 255),) * 5},
        ),
    ],
)
def test_a_change_is_refused_as_the_whole_would_be(value: Spec, changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as anew:
        type(value)(**{**value.values(), **changes})
    with pytest.raises(SpecError) as made:
        value.but(**changes)
    assert str(made.value) == str(anew.value)


def test_a_changed_value_is_the_one_that_is_made_anew() -> None:
    other = ATTENTION.but(n_kv_heads=Count(8), rotary=None)
    anew = GQASpec(**{**ATTENTION.values(), "n_kv_heads": Count(8), "rotary": None})
    assert (other, hash(other), other.key, vars(other).keys()) == (anew, hash(anew), anew.key, vars(anew).keys())
    assert pickle.loads(pickle.dumps(other)) == anew
    assert ATTENTION.n_kv_heads is None


def test_what_changes_nothing_is_the_same_value() -> None:
    assert LLAMA.but(context=LLAMA.context, heads=(*LLAMA.heads,)) is LLAMA
    assert changed(LLAMA, GQASpec, n_heads=ATTENTION.n_heads, rotary=ATTENTION.rotary) is LLAMA
    assert changed(LLAMA, RMSNormSpec, eps=1e-3).stack.embedding is LLAMA.stack.embedding
    assert ATTENTION.but(bias_query=0 == 1) is ATTENTION


def test_what_stands_in_several_places_is_edited_once() -> None:
    met: list[RMSNormSpec] = []
    found = edited(LLAMA, RMSNormSpec, lambda norm: met.append(norm) or norm.but(eps=1e-3))
    assert len(met) == 1
    norms = {id(norm) for norm in found.nested(RMSNormSpec)}
    assert len(norms) == 1
    assert len({id(block) for block in found.stack.blocks}) == 1


def test_fields_that_may_hold_values_are_known_by_their_types() -> None:
    assert nesting(RMSNormSpec) == ()
    assert nesting(StackSpec) == ("embedding", "blocks", "residual", "norm")
    assert nesting(BlockSpec) == ("sublayers", "connection")
    assert "rotary" in nesting(GQASpec)
    assert {RotarySpec, GQASpec, RMSNormSpec} <= LLAMA.kinds_inside
    assert Width(4096) == LLAMA.stack.d_model
