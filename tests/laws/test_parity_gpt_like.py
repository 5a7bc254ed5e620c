"""Law 6 for the GPT lineage: each distinguishing field is seen, and so are the wirings that no preset has."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.bloom import bloom
from anyformer.families.compose import changed, layered
from anyformer.families.compose import serial as in_turn
from anyformer.families.falcon import falcon
from anyformer.families.gpt_neo import gpt_neo
from anyformer.families.gpt_neox import gpt_neox
from anyformer.families.hf.mapping import misfits, spec_of
from anyformer.families.openai_gpt import openai_gpt
from anyformer.families.opt import opt
from anyformer.layers import (
    GELU,
    ALiBiSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    ReLU,
    RotarySpec,
    SlidingWindow,
)
from anyformer.resizing import resize, shrink
from anyformer.spec import EmbeddingSpec, ModelSpec, ScaleSpec, Spec, SublayerSpec, TableSpec, Width, Window
from tests.laws.inputs import inputs
from tests.laws.mutations import check_seen
from tests.laws.parity import differences, in_double, moves, pair, rounding
from tests.laws.tolerance import FLOAT32, VISIBLE, distance
from tests.laws.weights import edited, filled, telling


def but(**changes: Any) -> Any:
    return lambda value: value.but(**changes)


def serial(spec: ModelSpec) -> ModelSpec:
    """Return the model with its branches one after the other, each with the norm that it has."""
    apart = edited(
        spec.stack,
        SublayerSpec,
        lambda sub: sub if len(sub.branches) == 1 else sub.but(branches=sub.branches[:1]),
    )
    blocks = []
    for old, new in zip(spec.stack.blocks, apart.blocks, strict=True):
        second = old.sublayers[0].but(branches=old.sublayers[0].branches[1:])
        blocks.append(new.but(sublayers=(*new.sublayers, second)))
    return spec.but(stack=spec.stack.but(blocks=tuple(blocks)))


NARROW = Causal() & SlidingWindow(size=Window(4))
MUTATIONS: dict[str, tuple[str, type[Spec], Any]] = {
    "neox fraction": ("gpt-neox-20b", RotarySpec, but(fraction=0.5)),
    "neox layout": ("pythia-70m", RotarySpec, but(layout="interleaved", fraction=0.5)),
    "neox theta": ("gpt-neox-20b", RotarySpec, but(theta=12_000.0, fraction=0.5)),
    "neox eps": ("gpt-neox-20b", LayerNormSpec, but(eps=1e-6)),
    "gptj fraction": ("gptj-6b", RotarySpec, but(fraction=0.5)),
    "gptj gelu": ("gptj-6b", GELU, but(form="erf")),
    "gptj eps": ("gptj-6b", LayerNormSpec, but(eps=1e-6)),
    "neo scale": ("gpt-neo-125m", AttentionSpec, but(scale=ScaleSpec(power=-0.01))),
    "neo window": ("gpt-neo-125m", SlidingWindow, but(size=Window(6))),
    "neo global layers": ("gpt-neo-125m", AttentionSpec, but(mask=NARROW)),
    "opt offset": ("opt-125m", LearnedPositionsSpec, lambda value: value.but(offset=1, n_positions=65)),
    "opt activation": ("opt-125m", ReLU, lambda _: GELU()),
    "opt eps": ("opt-125m", LayerNormSpec, but(eps=1e-6)),
    "bloom alibi": ("bloom-560m", AttentionSpec, but(scores=())),
    "bloom alibi's scale": ("bloom-560m", ALiBiSpec, but(scale=ScaleSpec(power=-0.5))),
    "bloom gelu": ("bloom-560m", GELU, but(form="erf")),
    "bloom eps": ("bloom-560m", LayerNormSpec, but(eps=1e-6)),
    "falcon rw alibi's scale": ("falcon-rw-1b", ALiBiSpec, but(scale=None)),
    "falcon theta": ("falcon2-11b", RotarySpec, but(theta=510_000.0)),
    "falcon gelu": ("falcon-7b", GELU, but(form="tanh")),
    "falcon key/value heads": ("falcon-40b", GQASpec, but(rotary=RotarySpec(layout="interleaved"))),
    "gpt gelu": ("gpt", GELU, but(form="erf")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_distinguishing_field_is_seen(name: str) -> None:
    origin, kind, edit = MUTATIONS[name]
    spec = shrink(preset(origin).spec)
    check_seen(spec, edited(spec, kind, edit))


def small(model: ModelSpec) -> ModelSpec:
    """The model with as many tokens and positions as these tests give it."""
    return resize(model, vocab_size=101, context=64)


def untied(model: ModelSpec) -> ModelSpec:
    return changed(model, TableSpec, shared=None)


NEOX = small(gpt_neox(n_layers=2, d_model=32, n_heads=4))
(BRANCHES,) = NEOX.stack.blocks[0].sublayers
NO_BIASES = dict.fromkeys(("bias_query", "bias_key", "bias_value", "bias_output"), False)
TWO: dict[str, Any] = {"n_layers": 2, "n_heads": 4, "d_model": 32, "vocab_size": 101, "context": 64}
WIRINGS: dict[str, ModelSpec] = {
    "neox, serial": layered(NEOX, in_turn(LayerNormSpec(eps=1e-5), *(branch.mixer for branch in BRANCHES.branches))),
    "neox, tied, without biases": changed(
        changed(changed(NEOX, TableSpec, shared="tokens"), GQASpec, **NO_BIASES), FeedForwardSpec, d_ff=Width(40)
    ),
    "neox, all features rotating": changed(NEOX, GQASpec, rotary=RotarySpec(theta=500.0)),
    "neo, other windows": changed(
        untied(small(gpt_neo(windows=[3, None, 3], n_heads=2, d_model=32))), FeedForwardSpec, d_ff=Width(40)
    ),
    "opt, no final norm": opt(**TWO, final_norm=False),
    "opt, bare norms and no biases": changed(
        changed(changed(opt(**TWO), LayerNormSpec, weight=False, bias=False), GQASpec, **NO_BIASES),
        FeedForwardSpec,
        bias_in=False,
        bias_out=False,
    ),
    "opt, wide table": untied(opt(**TWO, table_width=48, activation=GELU())),
    "bloom, six heads": untied(small(bloom(n_layers=2, d_model=48, n_heads=6))),
    "falcon, two norms, all heads": falcon(**TWO, n_kv_heads=4, rotary=RotarySpec(theta=300.0), bias=True),
    "falcon, serial, one key": falcon(**TWO, n_kv_heads=1, rotary=RotarySpec(), wiring="serial", tied=False),
    "falcon, alibi, twelve heads": falcon(
        n_layers=2, d_model=96, n_heads=12, n_kv_heads=12, vocab_size=101, wiring="one norm", context=64
    ),
    "gpt, untied, relu": changed(
        untied(small(openai_gpt(n_layers=2, d_model=32, n_heads=4))), FeedForwardSpec, activation=ReLU()
    ),
}


@pytest.mark.parametrize("kind", ["plain", "left", "packed"])
@pytest.mark.parametrize("name", WIRINGS)
def test_wirings_without_a_preset_are_those_of_transformers_too(name: str, kind: str) -> None:
    found = differences(pair(WIRINGS[name], "sdpa"), inputs(kind, 101))
    assert max(found.logits, found.hidden, found.gradients) < FLOAT32


CODEGEN = {"n_positions": 64, "layer_norm_epsilon": 1e-3}
BIOGPT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
XGLM = {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48}
CTRL = {"n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 48, "n_positions": 64}
YOUTU = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "kv_lora_rank": 16,
}
YOUTU |= {"num_key_value_heads": 4, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
YOUTU |= {"initializer_range": 0.02, "max_position_embeddings": 64, "rms_norm_eps": 1e-3}
OTHERWISE = {"scale_embedding": False, "tie_word_embeddings": False}
GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("codegen", {**CODEGEN, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    (
        "codegen",
        {
            **CODEGEN,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 8,
            "rotary_dim": 8,
            "n_inner": 48,
            "activation_function": "relu",
        },
    ),
    ("biogpt", {**BIOGPT, "max_position_embeddings": 64}),
    ("biogpt", {**BIOGPT, **OTHERWISE, "max_position_embeddings": 70, "hidden_act": "relu"}),
    ("ctrl", CTRL),
    ("ctrl", {**CTRL, "tie_word_embeddings": False, "initializer_range": 0.05}),
    ("youtu", YOUTU),
    (
        "youtu",
        {**YOUTU, "q_lora_rank": None, "rope_interleave": False, "attention_bias": True, "tie_word_embeddings": False},
    ),
    ("xglm", XGLM),
    ("xglm", {**XGLM, **OTHERWISE, "activation_function": "relu", "init_std": 0.05}),
]


@pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=[f"{t} {i}" for i, (t, _) in enumerate(GIVEN)])
def test_classes_that_share_an_architecture_are_read_as_they_are(
    hf_type: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of CodeGen GPT-J's class would be taken; the class's defaults spelled out mean the same, its files hold this model."""
    settings = {"vocab_size": 101, **settings}
    ours = spec_of(FAMILIES, {"model_type": hf_type, **settings}, "config.json")[1]
    assert ours == spec_of(FAMILIES, transformers.AutoConfig.for_model(hf_type, **settings).to_dict(), "theirs")[1]
    assert not misfits(FAMILIES[hf_type], ours)[1]
    monkeypatch.setattr("tests.laws.parity.FAMILIES", {hf_type: FAMILIES[hf_type]})
    found = in_double(ours, inputs("left", 101), tmp_path)
    assert found.largest < rounding(ours)


def test_codegen_shares_heads_out_in_fours() -> None:
    settings = {"model_type": "codegen", "vocab_size": 101, "n_embd": 48, "n_layer": 2, "n_head": 6, "rotary_dim": 4}
    with pytest.raises(CheckpointError, match="n_head = 6 is no multiple of 4"):
        spec_of(FAMILIES, settings, "config.json")


@pytest.mark.parametrize(("name", "other"), [("gpt-neox-20b", "erf"), ("pythia-70m", "tanh")])
def test_the_form_of_gelu_is_seen(name: str, other: str) -> None:
    """It moves logits by 3e-4, which rotary angles of float32 would nearly hide: without them, then."""
    spec = edited(shrink(preset(name).spec), GQASpec, but(rotary=None))
    assert moves(spec, edited(spec, GELU, but(form=other))) > VISIBLE


@pytest.mark.parametrize("name", ["gpt-neox-20b", "falcon-40b"])
def test_parallel_is_seen(name: str) -> None:
    spec = shrink(preset(name).spec)
    weights, given = telling(spec), inputs("plain", spec.vocab_size)
    there = {name.replace("sublayers.0.branches.1", "sublayers.1.branches.0"): w for name, w in weights.items()}
    with torch.no_grad():
        apart, beside = (filled(s, w)(given.input_ids).logits for s, w in ((serial(spec), there), (spec, weights)))
    assert distance(apart, beside) > VISIBLE * FLOAT32


def test_the_norm_after_the_embedding_is_seen() -> None:
    spec = shrink(preset("bloom-560m").spec)
    mutated = edited(spec, EmbeddingSpec, but(norm=LayerNormSpec(eps=1e-4)))
    assert moves(spec, mutated) > VISIBLE
