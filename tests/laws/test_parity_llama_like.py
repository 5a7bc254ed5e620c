"""Law 6 for LLaMA's descendants: every field in which they differ from it is seen in the logits."""

from typing import Any

import pytest

from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, Causal, RMSNormSpec, RotarySpec, SlidingWindow
from anyformer.resizing import shrink
from anyformer.spec import Spec
from tests.laws.parity import moves
from tests.laws.tolerance import VISIBLE

MUTATIONS: dict[str, list[tuple[type[Spec], dict[str, Any]]]] = {
    "mistral-7b-v0.1": [
        (SlidingWindow, {"size": 4}),
        (SlidingWindow, {"size": 6}),
        (AttentionSpec, {"mask": Causal()}),
        (RMSNormSpec, {"eps": 1e-6}),
        (RMSNormSpec, {"weight_offset": 0.01}),
        (RotarySpec, {"theta": 10_100.0}),
    ],
    "mistral-7b-v0.2": [(RotarySpec, {"theta": 1.1e6})],
}


@pytest.mark.parametrize(
    ("name", "part", "fields"),
    [
        pytest.param(name, part, fields, id=f"{name} {part.kind} {fields}")
        for name, mutations in MUTATIONS.items()
        for part, fields in mutations
    ],
)
def test_a_distinguishing_field_is_seen(name: str, part: type[Spec], fields: dict[str, Any]) -> None:
    spec = shrink(preset(name).spec)
    mutated = changed(spec, part, **fields)
    assert mutated != spec
    assert moves(spec, mutated) > VISIBLE
