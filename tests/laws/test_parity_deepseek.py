"""Law 6 for DeepSeek and others that choose keys: every field of latent attention, routers and choices is seen in the logits."""

from typing import Any

import pytest

from anyformer.layers import (
    AttentionSpec,
    CompressorSpec,
    EngramSpec,
    GatedDeltaNetSpec,
    GatedFeedForwardSpec,
    GatedResidualSpec,
    GatedRMSNormSpec,
    GatedStreamsSpec,
    HyperConnectionSpec,
    HyperStreamsSpec,
    IndexerSpec,
    LayerNormSpec,
    MLASpec,
    OutputGateSpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SharedKVSpec,
    SiLU,
    SlidingWindow,
    YaRN,
)
from anyformer.spec import Count, HeadSpec, ScaleSpec, Spec, Vocab, Window
from tests.laws.mutations import check_mutation, each_mutation

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
    "deepseek-v3.2": [
        (IndexerSpec, {"top_k": 4}),
        (IndexerSpec, {"layout": "interleaved"}),
        (IndexerSpec, {"norm_key": LayerNormSpec(eps=1e-1)}),
        (AttentionSpec, {"indexer": None}),
    ],
    "deepseek-v4-flash": [
        (RotarySpec, {"where": "first"}),
        (RotarySpec, {"layout": "half"}),
        (RotarySpec, {"theta": 150_000.0}),
        (RotarySpec, {"scaling": None}),
        (SlidingWindow, {"size": 6}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.49)}),
        (SharedKVSpec, {"norm_query": RMSNormSpec(weight=False, eps=1e-2)}),
        (SharedKVSpec, {"norm_latent": RMSNormSpec(eps=1e-2)}),
        (CompressorSpec, {"norm": RMSNormSpec(eps=1e-2)}),
        (IndexerSpec, {"top_k": 4}),
        (IndexerSpec, {"where": "first"}),
        (HyperConnectionSpec, {"iterations": Count(2)}),
        (HyperConnectionSpec, {"least": 1e-3}),
        (HyperConnectionSpec, {"norm": RMSNormSpec(weight=False, eps=1e-2)}),
        (HyperStreamsSpec, {"least": 1e-3}),
        (HyperStreamsSpec, {"norm": None}),
        (RouterSpec, {"score": "sigmoid"}),
        (RouterSpec, {"factor": 1.4}),
        (RouterSpec, {"renormalise": False}),
        (GatedFeedForwardSpec, {"limit": 0.5}),
    ],
    "glm-5": [(IndexerSpec, {"top_k": 4}), (IndexerSpec, {"layout": "half"}), (RotarySpec, {"theta": 1_100_000.0})],
    "glm-5.3-flash": [
        (IndexerSpec, {"top_k": 10}),
        (GatedDeltaNetSpec, {"bound": 4.9}),
        (GatedFeedForwardSpec, {"limit": 0.5}),
        (HyperConnectionSpec, {"iterations": 1}),
        (HyperConnectionSpec, {"most": 1.9}),
    ],
    "a.x-k2-light": [
        (IndexerSpec, {"top_k": 4}),
        (IndexerSpec, {"layout": "interleaved"}),
        (OutputGateSpec, {"activation": SiLU()}),
        (MLASpec, {"norm_query": RMSNormSpec(eps=1e-2)}),
        (GatedRMSNormSpec, {"eps": 1e-5}),
        (RotarySpec, {"theta": 11_000.0}),
    ],
    "mistral-large-4": [
        (IndexerSpec, {"top_k": 4}),
        (IndexerSpec, {"norm_read": LayerNormSpec(eps=1e-1)}),
        (RotarySpec, {"theta": 11_000.0}),
        (HeadSpec, {"softcap": 25.0}),
    ],
    "qwen3.8-flash-next": [
        (IndexerSpec, {"top_k": Window(8)}),
        (IndexerSpec, {"every": Window(2)}),
        (GatedDeltaNetSpec, {"activation": SiLU()}),
        (GatedResidualSpec, {"norm": RMSNormSpec(eps=1e-1, weight_offset=1.0)}),
        (GatedStreamsSpec, {"norm": RMSNormSpec(eps=1e-1, weight_offset=1.0)}),
        (EngramSpec, {"end": 99}),
        (EngramSpec, {"seed": 1}),
        (EngramSpec, {"vocab": Vocab(102)}),
        (EngramSpec, {"norm": RMSNormSpec(eps=1e-1, weight_offset=1.0)}),
    ],
    "hy-v4": [
        (IndexerSpec, {"top_k": 4}),
        (IndexerSpec, {"where": "first"}),
        (AttentionSpec, {"gate": None}),
        (HyperConnectionSpec, {"least": 1e-3}),
        (HyperConnectionSpec, {"most": 1.9}),
        (HyperConnectionSpec, {"floor": 1e-3}),
        (HyperStreamsSpec, {"least": 1e-3}),
        (MLASpec, {"norm_kv": RMSNormSpec(eps=1e-2)}),
        (RotarySpec, {"layout": "interleaved"}),
        (RouterSpec, {"factor": 2.7}),
        (GatedFeedForwardSpec, {"limit": 0.5}),
    ],
    "deepseek-v2-lite": [(RouterSpec, {"top_k": 1}), (RouterSpec, {"score": "sigmoid"})],
}


@pytest.mark.in_turn(4)
@each_mutation(MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str, part: type[Spec], fields: dict[str, Any]) -> None:
    check_mutation(name, part, fields)
