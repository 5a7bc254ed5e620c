"""Law 6 for DeepSeek: every field of latent attention, of its positions and of its routers is seen in the logits."""

from typing import Any

import pytest

from anyformer.families import preset
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, MLASpec, RMSNormSpec, RotarySpec, RouterSpec, YaRN
from anyformer.resizing import shrink
from anyformer.spec import ScaleSpec, Spec
from tests.laws.parity import moves
from tests.laws.tolerance import VISIBLE

MUTATIONS: dict[str, list[tuple[type[Spec], dict[str, Any]]]] = {
    "deepseek-v3": [
        (RotarySpec, {"layout": "half"}),
        (RotarySpec, {"theta": 11_000.0}),
        (RotarySpec, {"scaling": None}),
        (YaRN, {"factor": 30.0}),
        (YaRN, {"attention_factor": None}),
        (YaRN, {"beta_slow": 0.5}),
        (YaRN, {"original_context": 320}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        (MLASpec, {"norm_kv": RMSNormSpec(eps=1e-2)}),
        (MLASpec, {"norm_query": RMSNormSpec(eps=1e-2)}),
        (RMSNormSpec, {"eps": 1e-5}),
        (RouterSpec, {"score": "softmax"}),
        (RouterSpec, {"top_k": 1}),
        (RouterSpec, {"factor": 2.4}),
        (RouterSpec, {"renormalise": False}),
        (RouterSpec, {"top_groups": 1}),
        (RouterSpec, {"n_groups": 2, "top_groups": 1}),
        (RouterSpec, {"group_score": "max"}),
    ],
    "deepseek-v2": [
        (RouterSpec, {"n_groups": 1, "top_groups": 1}),
        (RouterSpec, {"factor": 15.0}),
        (RouterSpec, {"renormalise": True}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
    ],
    "deepseek-v2-lite": [(RouterSpec, {"top_k": 1}), (RouterSpec, {"score": "sigmoid"})],
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
