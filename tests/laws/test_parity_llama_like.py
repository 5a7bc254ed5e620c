"""Law 6 for LLaMA's descendants: every field in which they differ from it is seen, and variants of them agree too."""

from typing import Any

import pytest

from anyformer.families import FAMILIES, preset
from anyformer.families.compose import changed
from anyformer.families.hf.mapping import misfits, spec_of
from anyformer.layers import (
    GELU,
    XIELU,
    AddByDepthSpec,
    AddSpec,
    AltUpSpec,
    AttentionSpec,
    Causal,
    CausalConvolutionSpec,
    FactorSpec,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LaurelSpec,
    LayerNormSpec,
    LinearScaling,
    LogSteps,
    LongRoPE,
    MoESpec,
    OutputGateSpec,
    PerLayerEmbeddingSpec,
    ProportionalRoPE,
    ReLU,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SameBlock,
    SiLU,
    SlidingWindow,
    Softplus,
    TokensSpec,
    YaRN,
)
from anyformer.resizing import shrink
from anyformer.spec import BranchSpec, EmbeddingSpec, HeadSpec, ModelSpec, ScaleSpec, Spec, SublayerSpec
from tests.laws.inputs import inputs
from tests.laws.mutations import check_mutation, each_mutation
from tests.laws.parity import differences, moves, pair
from tests.laws.tolerance import FLOAT32, VISIBLE

Change = tuple[type[Spec], dict[str, Any]]

NO_QK_NORM: Change = (GQASpec, {"norm_query": None, "norm_key": None})
MUTATIONS: dict[str, list[Change]] = {
    "minicpm3-4b": [
        (TokensSpec, {"scale": None}),
        (HeadSpec, {"scale": None}),
        (AddByDepthSpec, {"branch": ScaleSpec(factor=2.0, power=-0.5)}),
        (LongRoPE, {"short": (1.0, 2.0, 3.0, 4.0), "long": (1.0, 2.0, 3.0, 4.0)}),
        (RotarySpec, {"layout": "interleaved"}),
    ],
    "muse-glimmer": [
        (SlidingWindow, {"size": 6}),
        (AttentionSpec, {"scale": ScaleSpec(factor=3.8, power=-0.5)}),
        (HeadSpec, {"scale": ScaleSpec(factor=0.2)}),
        (HeadSpec, {"softcap": 19.0}),
        (EmbeddingSpec, {"norm": None}),
        (BranchSpec, {"norm_out": None}),
        (RotarySpec, {"theta": 1.1e4}),
        NO_QK_NORM,
    ],
    "step-3.5-flash": [
        (SlidingWindow, {"size": 6}),
        (RotarySpec, {"fraction": 1.0}),
        (RMSNormSpec, {"weight_offset": 0.99}),
        (GatedFeedForwardSpec, {"limit": 0.5}),
        (OutputGateSpec, {"activation": Softplus()}),
        (RouterSpec, {"factor": 2.9}),
    ],
    "laguna-33b": [
        (AttentionSpec, {"gate": OutputGateSpec(over="heads")}),
        (RouterSpec, {"softcap": 5.0}),
        (RotarySpec, {"fraction": 1.0}),
        NO_QK_NORM,
    ],
    "zaya1-8b": [
        (GQASpec, {"convolved": None}),
        (RouterSpec, {"empty": False}),
        (SublayerSpec, {"skip": None}),
        (BranchSpec, {"norm_out": None}),
        (EmbeddingSpec, {"norm": None}),
        (RotarySpec, {"fraction": 1.0}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        NO_QK_NORM,
    ],
    "lfm3-1.7b": [
        (AttentionSpec, {"gate": None}),
        (AttentionSpec, {"gate": OutputGateSpec(over="heads", activation=Softplus())}),
        (BranchSpec, {"norm_out": None}),
        (SlidingWindow, {"size": 4}),
        (CausalConvolutionSpec, {"activation": SiLU()}),
        (ProportionalRoPE, {"share": 0.25}),
        NO_QK_NORM,
    ],
    "helium-1-2b": [(RotarySpec, {"layout": "half"}), (RotarySpec, {"theta": 1.1e5}), (RMSNormSpec, {"eps": 1e-6})],
    "cwm-32b": [(SlidingWindow, {"size": 6}), (RotarySpec, {"scaling": None}), (RMSNormSpec, {"eps": 1e-6})],
    "persimmon-8b": [(RotarySpec, {"fraction": 1.0}), (RotarySpec, {"theta": 2.6e4}), (LayerNormSpec, {"eps": 1e-6})],
    "jais-2-8b": [(FeedForwardSpec, {"activation": ReLU()}), (RotarySpec, {"fraction": 0.5})],
    "k-exaone-236b-a23b": [(SlidingWindow, {"size": 6}), (RotarySpec, {"theta": 1.1e6}), (RouterSpec, {"factor": 2.4})],
    "mellum-2-12b": [(SlidingWindow, {"size": 6}), (RotarySpec, {"theta": 5e5}), (RouterSpec, {"renormalise": False})],
    "glm-4.7-flash": [(RotarySpec, {"layout": "half"}), (RouterSpec, {"factor": 1.7})],
    "solar-open-100b": [(RotarySpec, {"fraction": 0.5}), (RouterSpec, {"renormalise": False})],
    "hy-v3-295b": [(RouterSpec, {"factor": 2.8}), (RotarySpec, {"theta": 1e7})],
    "mistral-7b-v0.1": [
        (SlidingWindow, {"size": 4}),
        (SlidingWindow, {"size": 6}),
        (AttentionSpec, {"mask": Causal()}),
        (RMSNormSpec, {"eps": 1e-6}),
        (RMSNormSpec, {"weight_offset": 0.01}),
        (RotarySpec, {"theta": 10_100.0}),
    ],
    "mistral-7b-v0.2": [(RotarySpec, {"theta": 1.1e6})],
    "qwen-7b": [(RotarySpec, {"theta": 10_100.0}), (RMSNormSpec, {"eps": 1e-5})],
    "qwen2.5-7b": [
        (RotarySpec, {"theta": 1.1e6}),
        (RMSNormSpec, {"eps": 1e-5}),
        (GatedFeedForwardSpec, {"activation": GELU()}),
    ],
    "gemma-7b": [
        (RMSNormSpec, {"weight_offset": 0.99}),
        (RMSNormSpec, {"eps": 1.1e-5}),
        (GatedFeedForwardSpec, {"activation": SiLU()}),
        (GatedFeedForwardSpec, {"activation": GELU()}),
        (TokensSpec, {"scale": None}),
        (RotarySpec, {"theta": 10_100.0}),
    ],
    "gemma2-27b": [
        (SlidingWindow, {"size": 4}),
        (SlidingWindow, {"size": 6}),
        (AttentionSpec, {"softcap": None}),
        (AttentionSpec, {"softcap": 48.0}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        (HeadSpec, {"softcap": None}),
        (HeadSpec, {"softcap": 31.0}),
        (BranchSpec, {"norm_out": None}),
        (RMSNormSpec, {"weight_offset": 0.99}),
    ],
    "gemma3-27b": [
        (SlidingWindow, {"size": 4}),
        (SlidingWindow, {"size": 6}),
        (RotarySpec, {"theta": 1e4}),
        (LinearScaling, {"factor": 7.0}),
        (AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
        (RMSNormSpec, {"weight_offset": 0.99}),
        (RMSNormSpec, {"eps": 1.1e-5}),
        (TokensSpec, {"scale": None}),
    ],
    "phi-2": [
        (RotarySpec, {"fraction": 0.5}),
        (RotarySpec, {"theta": 10_100.0}),
        (LayerNormSpec, {"eps": 1e-6}),
        (FeedForwardSpec, {"activation": ReLU()}),
        (FeedForwardSpec, {"activation": GELU()}),
    ],
    "phi3-mini-4k": [(SlidingWindow, {"size": 4}), (SlidingWindow, {"size": 6})],
    "phi4-mini": [
        (RotarySpec, {"fraction": 1.0, "scaling": None}),
        (RotarySpec, {"scaling": None}),
        (LongRoPE, {"factor": 31.0}),
        (LongRoPE, {"original_context": 40}),
    ],
    "olmo-7b-0724": [(LayerNormSpec, {"eps": 1e-6}), (RotarySpec, {"theta": 10_100.0})],
    "olmo2-7b": [
        (RMSNormSpec, {"eps": 1e-5}),
        (RotarySpec, {"theta": 510_000.0}),
    ],
    "command-r-plus": [
        (RotarySpec, {"layout": "half"}),
        (RotarySpec, {"theta": 7e7}),
        (LayerNormSpec, {"eps": 1e-6}),
        (HeadSpec, {"scale": ScaleSpec(factor=0.83)}),
    ],
    "command-a": [
        (SlidingWindow, {"size": 4}),
        (SlidingWindow, {"size": 6}),
        (GQASpec, {"rotary": RotarySpec(theta=50_000.0, layout="interleaved")}),
        (RotarySpec, {"theta": 51_000.0}),
        (RotarySpec, {"layout": "half"}),
        (HeadSpec, {"scale": ScaleSpec(factor=0.26)}),
    ],
    "vaultgemma-1b": [
        (AttentionSpec, {"softcap": None}),
        (SlidingWindow, {"size": 6}),
    ],
    "gemma3n-e4b": [
        (GatedFeedForwardSpec, {"sparsity": None}),
        (GQASpec, {"norm_value": None}),
        (AltUpSpec, {"inside": None}),
        (AddSpec, {"branch": 0.99}),
        (LaurelSpec, {"norm": None}),
        (FactorSpec, {"factor": 0.7}),
        (PerLayerEmbeddingSpec, {"activation": ReLU()}),
        (HeadSpec, {"softcap": None}),
    ],
    "ettin-decoder-1b": [
        (SlidingWindow, {"size": 6}),
        (RotarySpec, {"theta": 1e4}),
        (LayerNormSpec, {"eps": 1e-6}),
        (EmbeddingSpec, {"norm": None}),
    ],
    "gemma4-e4b": [
        (ProportionalRoPE, {"share": 0.5}),
        (GQASpec, {"norm_value": None}),
        (RotarySpec, {"theta": 1.1e6}),
        (PerLayerEmbeddingSpec, {"activation": ReLU()}),
        (SlidingWindow, {"size": 6}),
        (HeadSpec, {"softcap": None}),
    ],
    "gemma4-26b-a4b": [
        (GQASpec, {"values_are_keys": True}),
        (MoESpec, {"norm": None}),
        (SublayerSpec, {"norm_out": None}),
        (RouterSpec, {"norm": None}),
        (RouterSpec, {"scale": None}),
        (RouterSpec, {"renormalise": False}),
    ],
    "bitnet-b1.58-2b4t": [
        (AttentionSpec, {"norm": None}),
        (GatedFeedForwardSpec, {"norm": None}),
        (GatedFeedForwardSpec, {"activation": ReLU()}),
    ],
    "apertus-8b": [
        (XIELU, {"beta": 0.51}),
        (XIELU, {"eps": -0.1}),
        NO_QK_NORM,
    ],
    "nanochat-d20": [
        (RotarySpec, {"backwards": False}),
        (HeadSpec, {"softcap": None}),
        (EmbeddingSpec, {"norm": None}),
        (FeedForwardSpec, {"activation": ReLU()}),
        NO_QK_NORM,
    ],
    "ernie-4.5-21b-a3b": [
        (RouterSpec, {"score": "sigmoid"}),
        (RouterSpec, {"renormalise": False}),
        (RotarySpec, {"layout": "half"}),
    ],
    "llama4-scout": [
        (SameBlock, {"size": 4}),
        (SameBlock, {"size": 6}),
        (MoESpec, {"weighs": "output"}),
        (RouterSpec, {"score": "softmax"}),
        (LogSteps, {"start": 0}),
        NO_QK_NORM,
    ],
    "llama4-maverick": [
        (RotarySpec, {"layout": "half"}),
        (AttentionSpec, {"query_scale": None}),
    ],
    "ministral-3-8b": [
        (AttentionSpec, {"query_scale": None}),
        (LogSteps, {"growth": 0.11}),
        (LogSteps, {"start": 1}),
        (YaRN, {"attention_factor": None}),
    ],
    "mistral-small-4": [
        (AttentionSpec, {"query_scale": None}),
        (LogSteps, {"length": 33}),
        (RouterSpec, {"renormalise": False}),
    ],
    "trinity-mini": [
        (AttentionSpec, {"gate": None}),
        (AttentionSpec, {"gate": OutputGateSpec(activation=Softplus())}),
        (SlidingWindow, {"size": 4}),
        (BranchSpec, {"norm_out": None}),
        (TokensSpec, {"scale": None}),
        (RouterSpec, {"factor": 2.8}),
        NO_QK_NORM,
    ],
    "nemotron4-15b": [
        (LayerNormSpec, {"weight_offset": 0.99}),
        (LayerNormSpec, {"eps": 1e-6}),
        (RotarySpec, {"fraction": 1.0}),
        (FeedForwardSpec, {"activation": ReLU()}),
    ],
}


@pytest.mark.in_turn(4)
@each_mutation(MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str, part: type[Spec], fields: dict[str, Any]) -> None:
    check_mutation(name, part, fields)


LN = LayerNormSpec(eps=1e-5)
VARIANTS: dict[str, tuple[str, str, list[Change]]] = {
    # of a preset: the class that must compute it, and what is changed
    "qwen2 biases on windows": (
        "mistral-7b-v0.1",
        "qwen2",
        [(GQASpec, {f"bias_{x}": True for x in ("query", "key", "value")})],
    ),
    "phi with qk-norm": (
        "phi-2",
        "phi",
        [(GQASpec, {"head_dim": None, "rotary": RotarySpec(fraction=0.5), "norm_query": LN, "norm_key": LN})],
    ),
    "phi tied": ("phi-2", "phi", [(RotarySpec, {"theta": 5e4})]),
    "phi3 window and partial rotary": ("phi3-mini-4k", "phi3", [(RotarySpec, {"fraction": 0.5})]),
    "gemma2 without caps": ("gemma2-2b", "gemma2", [(AttentionSpec, {"softcap": None}), (HeadSpec, {"softcap": None})]),
    "gemma2 biases": (
        "gemma2-2b",
        "gemma2",
        [(GQASpec, {f"bias_{x}": True for x in ("query", "key", "value", "output")})],
    ),
    "gemma3 with a cap on logits": ("gemma3-1b", "gemma3_text", [(HeadSpec, {"softcap": 30.0})]),
    "olmo with clip": ("olmo-1b", "olmo", [(GQASpec, {"clip": 1.0})]),
    "command r grouped, with qk-norm and biases": (
        "command-r-plus",
        "cohere",
        [(GQASpec, {f"bias_{x}": True for x in ("query", "key", "value", "output")})],
    ),
    "nemotron with biases": ("nemotron4-15b", "nemotron", [(FeedForwardSpec, {"bias_in": True, "bias_out": True})]),
    "nemotron with every feature turning": ("nemotron4-15b", "nemotron", [(RotarySpec, {"fraction": 1.0})]),
}


@pytest.mark.parametrize("kind", ["left", "packed"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_agree(name: str, kind: str) -> None:
    origin, hf_type, changes = VARIANTS[name]
    spec = shrink(preset(origin).spec)
    for part, fields in changes:
        spec = changed(spec, part, **fields)
    both = pair(spec)
    assert both.family.hf_type == hf_type
    found = differences(both, inputs(kind, spec.vocab_size))
    assert max(found.logits, found.hidden, found.gradients) < FLOAT32


def test_what_is_clipped_is_seen() -> None:
    """The shrunk preset's q, k and v are below OLMo's 8."""
    clipped = changed(shrink(preset("olmo-7b-0724").spec), GQASpec, clip=1.0)
    for other in (None, 1.01):
        assert moves(clipped, changed(clipped, GQASpec, clip=other)) > VISIBLE


def qwen2(**settings: Any) -> ModelSpec:
    sizes = {"vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return spec_of(FAMILIES, {"model_type": "qwen2", **sizes, **heads, **settings}, "config.json")[1]


def test_qwen2_windows_at_the_end() -> None:
    """Layers from max_window_layers on, and only where use_sliding_window says so."""
    spec = qwen2(use_sliding_window=True, sliding_window=5, max_window_layers=2)
    found = [any(isinstance(v, SlidingWindow) for v in block.nested()) for block in spec.stack.blocks]
    assert found == [False, False, True, True]
    assert qwen2(sliding_window=5, max_window_layers=2) == qwen2()
    assert not misfits(FAMILIES["qwen2"], spec)[1]
    assert differences(pair(spec), inputs("left", 101)).largest < FLOAT32


def test_where_norms_stand_is_seen() -> None:
    """OLMo 2's stand behind the branches and over all heads at once, Command R+'s over each head with a weight of its own."""
    olmo2, command = shrink(preset("olmo2-7b").spec), shrink(preset("command-r-plus").spec)
    with pytest.raises(RuntimeError, match="norm_query"):
        moves(olmo2, changed(olmo2, GQASpec, norm_over="head"))
    with pytest.raises(RuntimeError, match="norm_query"):
        moves(command, changed(command, GQASpec, norm_over="head"))
    assert any(isinstance(v, SublayerSpec) and v.norm_in is None for v in olmo2.nested())
