"""Configurations of LLaMA's descendants: what their classes take where nothing is said, their quirks, what is refused."""

from typing import Any

import pytest
import transformers

from anyformer.errors import CheckpointError, SpecError
from anyformer.families import FAMILIES, preset
from anyformer.families.compose import changed
from anyformer.families.hf.mapping import fitting, misfits, spec_of
from anyformer.layers import (
    GELU,
    AttentionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LinearScaling,
    LongRoPE,
    RotarySpec,
    SlidingWindow,
    YaRN,
)
from anyformer.resizing import shrink
from anyformer.spec import HeadSpec, Length, ModelSpec, ScaleSpec, Spec

SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
CLASSES = (
    "mistral",
    "qwen2",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "olmo",
    "olmo2",
    "cohere",
    "cohere2",
    "nemotron",
)
STRICT = ("gemma", "gemma2", "gemma3_text", "mistral")  # these take no null for their heads
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def read(hf_type: str, **settings: Any) -> ModelSpec:
    return spec_of(FAMILIES, {"model_type": hf_type, **SIZES, **settings}, "config.json")[1]


def first(spec: Spec, kind: type[Spec]) -> Any:
    return next((value for value in spec.nested() if isinstance(value, kind)), None)


def windows(spec: ModelSpec) -> list[int | None]:
    return [getattr(first(block, SlidingWindow), "size", None) for block in spec.stack.blocks]


GIVEN: list[tuple[str, dict[str, Any]]] = [
    *((hf_type, {}) for hf_type in CLASSES),
    ("mistral", {"sliding_window": None}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 5}),
    ("qwen2", {"sliding_window": 7, "max_window_layers": 5}),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": None}),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 32}),
    (
        "gemma3_text",
        {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    ("gemma3_text", {"sliding_window_pattern": 3, "sliding_window": 9, "query_pre_attn_scalar": 168}),
    ("phi", {"partial_rotary_factor": 0.25, "rope_theta": 5e4}),
    ("phi3", {"original_max_position_embeddings": 32, "rope_scaling": LONGROPE}),
    ("olmo", {"clip_qkv": 8.0}),
    ("cohere", {"use_qk_norm": True, "logit_scale": 0.5}),
    ("cohere2", {"sliding_window_pattern": 2, "rope_theta": 5e4}),
    ("nemotron", {"partial_rotary_factor": 1.0}),
]


@pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=str)
def test_what_is_read_is_what_the_class_makes_of_it(hf_type: str, settings: dict[str, Any]) -> None:
    """The configuration of transformers, which spells every default out, means the same to us."""
    given = {**SIZES, **settings}
    theirs = transformers.AutoConfig.for_model(hf_type, **given).to_dict()
    assert read(hf_type, **settings) == spec_of(FAMILIES, theirs, "theirs")[1]


@pytest.mark.parametrize("hf_type", CLASSES)
def test_key_value_heads_that_are_null_or_absent(hf_type: str) -> None:
    """Null is as many as queries; absent is that or the class's own number, which 32 heads are divided by."""
    sizes = {**SIZES, "hidden_size": 512, "num_attention_heads": 32}
    del sizes["num_key_value_heads"]
    for given in (sizes, sizes | {"num_key_value_heads": None}):
        if given.get("num_key_value_heads", 1) is None and hf_type in STRICT:
            continue
        config = transformers.AutoConfig.for_model(hf_type, **given).to_dict()
        if config["num_key_value_heads"] is not None:
            ours = spec_of(FAMILIES, {"model_type": hf_type, **given}, "config.json")[1]
            assert first(ours, GQASpec).kv_heads == config["num_key_value_heads"]


def test_windows() -> None:
    assert windows(read("mistral")) == [4096] * 8
    assert windows(read("mistral", sliding_window=None)) == [None] * 8
    assert windows(read("phi3", sliding_window=2047)) == [2047] * 8
    assert windows(read("qwen2", sliding_window=9)) == [None] * 8
    assert windows(read("gemma2", sliding_window=9)) == [9, None] * 4
    assert windows(read("gemma3_text", sliding_window=9)) == [9, 9, 9, 9, 9, None, 9, 9]
    assert windows(read("cohere2", sliding_window=9)) == [9, 9, 9, None] * 2
    types = ["full_attention", "sliding_attention"] * 4
    assert windows(read("cohere2", layer_types=types, sliding_window=9)) == [None, 9] * 4
    full = first(read("cohere2").stack.blocks[3], GQASpec)
    assert full.rotary is None


def test_rotary_positions_for_each_type_of_layer() -> None:
    """Gemma 3 in the spelling of transformers 4 and of 5."""
    tables = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
    }
    scaled = {"rope_type": "linear", "factor": 4.0}
    old = read("gemma3_text", rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling=scaled)
    assert old == read("gemma3_text", rope_parameters=tables)
    found = [first(block, RotarySpec) for block in old.stack.blocks]
    assert found[0] == RotarySpec(theta=2e4)
    assert found[5] == RotarySpec(theta=5e5, scaling=LinearScaling(factor=4.0))


def test_gemmas_quirks() -> None:
    """The word gelu means tanh in the first files; Gemma 3 never caps scores; their scale is a width of its own."""
    assert first(read("gemma", hidden_act="gelu"), GatedFeedForwardSpec).activation == GELU(form="tanh")
    assert first(read("gemma2", hidden_activation="gelu"), GatedFeedForwardSpec).activation == GELU()
    assert first(read("gemma3_text", attn_logit_softcapping=50.0), AttentionSpec).softcap is None
    assert first(read("gemma2"), AttentionSpec).softcap == 50.0
    assert first(read("gemma2", query_pre_attn_scalar=64), AttentionSpec).scale == ScaleSpec(factor=2.0, power=-0.5)
    assert first(read("gemma"), HeadSpec).softcap is None


def test_longrope_takes_its_length_from_outside_the_table() -> None:
    given = {"partial_rotary_factor": 1.0, "max_position_embeddings": 128}
    spec = read("phi3", original_max_position_embeddings=32, rope_scaling=LONGROPE, **given)
    assert first(spec, LongRoPE).original_context == 32
    assert first(read("phi3", rope_scaling=LONGROPE, **given), LongRoPE).original_context == 4096


@pytest.mark.parametrize(
    ("hf_type", "settings", "message"),
    [
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .* only longrope is"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling = .* only longrope is"),
        ("phi3", {"attention_bias": True}, "attention_bias = True is unknown here"),
        ("phi", {"qk_layernorm": True, "head_dim": 32}, "qk_layernorm = True is as wide as hidden_size"),
        ("mistral", {"attention_bias": True}, "attention_bias = True is unknown here"),
        ("qwen2", {"layer_types": ["full_attention"]}, r"layer_types = .* must be 8 times sliding_attention or full"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 8}, "layer_types = .* must be 8 times"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 8, "sliding_window": 4}, "leaves the sliding layers without"),
        ("cohere2", {"sliding_window": None}, "sliding_window = None leaves the sliding layers without a window"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is unknown here"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True is unknown here"),
        ("gemma2", {"num_attention_heads": 6}, "num_attention_heads = 6 does not divide hidden_size = 64"),
        (
            "mistral",
            {"num_attention_heads": 6},
            "num_attention_heads = 6 does not divide hidden_size = 64; set head_dim",
        ),
        ("cohere", {"layer_types": 3}, "layer_types = 3 is unknown here"),
        ("gemma2", {"layer_types": 3}, "layer_types = 3 must be a list of words"),
        ("olmo", {"rope_scaling": {"type": "yarm", "factor": 2.0}}, "did you mean 'yarn'"),
    ],
    ids=str,
)
def test_what_a_class_does_not_compute_is_refused_by_name(hf_type: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(hf_type, **settings)


def test_a_scaling_that_phi3_would_misread_is_not_written_for_it() -> None:
    """Its class reads yarn as longrope; a partly rotating model with YaRN has no class here."""
    spec = changed(shrink(preset("phi4-mini").spec), RotarySpec, scaling=YaRN(factor=4.0, original_context=Length(32)))
    with pytest.raises(SpecError, match="no class of transformers computes this model"):
        fitting(FAMILIES.values(), spec)


def test_a_scale_that_is_no_integer_is_not_written() -> None:
    spec = changed(shrink(preset("gemma2-2b").spec), AttentionSpec, scale=ScaleSpec(factor=0.9, power=-0.5))
    path, would, is_ = misfits(FAMILIES["gemma2"], spec)[1][0]
    assert path.endswith("mixer.scale.factor")
    assert would != is_ == 0.9
