"""Which configurations are read, which models a class of transformers computes, and what is said where neither."""

from typing import Any

import pytest
import torch

from anyformer.errors import CheckpointError, SpecError
from anyformer.families import FAMILIES, preset, with_classifier
from anyformer.families.compose import changed
from anyformer.families.hf.mapping import TensorRow, fitting, fused, same, spec_of, their_shapes
from anyformer.layers import (
    GELU,
    AddSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LinearScaling,
    Llama3Scaling,
    ReLU,
    ReLU2,
    RMSNormSpec,
    RotarySpec,
    SiLU,
    SlidingWindow,
    Swish,
)
from anyformer.resizing import shrink
from anyformer.spec import (
    HeadSpec,
    Length,
    ModelSpec,
    ScaleSpec,
    Spec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    Width,
    Window,
    parameters,
)
from tests.laws.weights import edited

GPT2 = {"model_type": "gpt2", "vocab_size": 101, "n_embd": 32, "n_layer": 2, "n_head": 4}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def read(config: dict[str, Any]) -> ModelSpec:
    return spec_of(FAMILIES, config, "config.json")[1]


def first(spec: Spec, kind: type[Spec]) -> Any:
    return next(value for value in spec.nested() if isinstance(value, kind))


def test_defaults_are_those_of_the_classes() -> None:
    llama, gpt2 = read(LLAMA), read(GPT2)
    assert first(llama, RotarySpec) == RotarySpec(theta=10_000.0)
    assert (first(llama, RMSNormSpec).eps, llama.context, llama.heads[0].tied) == (1e-6, 2048, None)
    assert first(llama, GatedFeedForwardSpec).activation == SiLU()
    assert (first(gpt2, LayerNormSpec).eps, gpt2.context, gpt2.heads[0].tied) == (1e-5, 1024, "tokens")
    assert first(gpt2, FeedForwardSpec) == FeedForwardSpec(d_ff=Width(128), activation=GELU(form="tanh"))


SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "spelled",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **SCALING}},
        {"rope_theta": 500_000, "rope_scaling": {"type": "llama3", **SCALING}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500_000.0, **SCALING}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "llama3", **SCALING}},
    ],
    ids=["4", "4, older", "5", "between"],
)
def test_rotary_positions_in_every_spelling(spelled: dict[str, Any]) -> None:
    assert first(read({**LLAMA, **spelled}), RotarySpec) == RotarySpec(
        theta=500_000.0, scaling=Llama3Scaling(factor=8.0, original_context=Length(64))
    )


def test_linear_scaling() -> None:
    spec = read({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}})
    assert first(spec, RotarySpec).scaling == LinearScaling(factor=2.0)


def test_settings_that_our_parts_express() -> None:
    llama = read({**LLAMA, "attention_bias": True, "mlp_bias": True, "hidden_act": "relu2", "num_key_value_heads": 2})
    heads, feed = first(llama, GQASpec), first(llama, GatedFeedForwardSpec)
    assert (heads.bias_query, heads.bias_key, heads.bias_value, heads.bias_output, heads.n_kv_heads) == (*[True] * 4, 2)
    assert (feed.bias_in, feed.bias_out, feed.activation) == (True, True, ReLU2())
    gpt2 = read({**GPT2, "scale_attn_by_inverse_layer_idx": True, "n_inner": 64, "tie_word_embeddings": False})
    scales = [value.scale for value in gpt2.nested() if isinstance(value, AttentionSpec)]
    assert scales == [ScaleSpec(factor=1.0, power=-0.5), ScaleSpec(factor=0.5, power=-0.5)]
    assert (first(gpt2, FeedForwardSpec).d_ff, gpt2.heads[0].tied) == (64, None)
    assert first(read({**GPT2, "scale_attn_weights": False}), AttentionSpec).scale == ScaleSpec(power=0.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": 32}, "config.json has no model_type"),
        (
            {"model_type": "lama"},
            "model_type 'lama' is not read here; docs/parity.md lists the classes that are",
        ),
        ({**LLAMA, "num_attention_heads": None}, "config.json has no setting 'num_attention_heads'"),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "yran", "factor": 4.0}},
            "rope_scaling: rope_type = 'yran' is no scaling",
        ),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear"}}, "rope_scaling has no setting 'factor'"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0, "beta": 3}}, "rope_scaling: beta = 3 is unknown"),
        ({**LLAMA, "rope_scaling": 2}, "rope_scaling = 2 must be a table"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not computed here; only 1.0 is"),
        ({**LLAMA, "hidden_act": "xielu"}, "hidden_act = 'xielu' is not computed here; only 'gelu' or"),
        ({**LLAMA, "num_attention_heads": 5}, "num_attention_heads = 5 does not divide hidden_size = 32"),
        (
            {**LLAMA, "num_key_value_heads": 3},
            "multiple of n_kv_heads = 3; the file says num_attention_heads = 4, num_key_value_heads = 3",
        ),
        ({**LLAMA, "rms_norm_eps": 0}, "RMSNorm.eps = 0.0 must be above 0; the file says rms_norm_eps = 0"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config = .* is unknown here and might change"),
        ({**LLAMA, "sliding_window": 512}, "sliding_window = 512 is unknown here"),
        ({**LLAMA, "hidden_size": "32"}, "hidden_size = '32' must be of type int"),
        ({**LLAMA, "attention_bias": 1}, "attention_bias = 1 must be of type bool"),
        ({**GPT2, "n_layer": True}, "n_layer = True must be of type int"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention = True is unknown here"),
        ({**GPT2, "n_layer": 0}, "n_layer = 0 must be above 0"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(config)


def test_settings_that_change_no_number_pass() -> None:
    idle = {
        "sliding_window": None,
        "quantization_config": {},
        "new_switch": False,
        "_name": "x",
        "attention_dropout": 0.1,
    }
    assert read({**LLAMA, **idle}) == read(LLAMA)


MISFITS: dict[str, tuple[str, type[Spec], Any, str]] = {
    "cast": (
        "llama-7b",
        RMSNormSpec,
        {"cast": "after"},
        r"'before' for stack.blocks\[0\].sublayers\[0\].norm_in.cast = 'after'",
    ),
    "window": (
        "llama-7b",
        AttentionSpec,
        {"mask": Causal() & SlidingWindow(size=Window(4))},
        r"Causal for .*mixer.mask = And",
    ),
    "scale": ("llama-7b", AttentionSpec, {"scale": ScaleSpec(factor=2.0, power=-0.5)}, r"1.0 for .*scale.factor = 2.0"),
    "softcap": ("llama-7b", AttentionSpec, {"softcap": 30.0}, r"None for .*softcap = 30.0"),
    "qk-norm": ("llama-7b", GQASpec, {"norm_query": RMSNormSpec()}, r"None for .*norm_query = RMSNorm"),
    "one bias": ("llama-7b", GQASpec, {"bias_query": True}, r"True for .*bias_key = False"),
    "layout": ("llama-7b", RotarySpec, {"layout": "interleaved"}, r"'half' for .*layout = 'interleaved'"),
    "partial": ("llama-7b", RotarySpec, {"fraction": 0.5}, r"1.0 for .*fraction = 0.5"),
    "activation": ("llama-7b", GatedFeedForwardSpec, {"activation": Swish(beta=2.0)}, r"SiLU for .*activation = Swish"),
    "gate limit": ("llama-7b", GatedFeedForwardSpec, {"limit": 7.0}, r"None for .*limit = 7.0"),
    "head bias": ("llama-7b", HeadSpec, {"bias": True}, r"False for heads\[0\].bias = True"),
    "head scale": ("llama-7b", HeadSpec, {"softcap": 30.0}, r"None for heads\[0\].softcap = 30.0"),
    "residual": ("gpt2", AddSpec, {"scale": 2.0}, r"1.0 for stack.residual.scale = 2.0"),
    "no final norm": ("gpt2", StackSpec, {"norm": None}, r"LayerNorm for stack.norm = None"),
    "head_dim": ("gpt2", GQASpec, {"head_dim": 16}, r"None for .*head_dim = 16"),
    "kv heads": ("gpt2", GQASpec, {"n_kv_heads": 2}, r"None for .*n_kv_heads = 2"),
    "norm bias": ("gpt2", LayerNormSpec, {"bias": False}, r"True for .*norm_in.bias = False"),
    "feed bias": ("gpt2", FeedForwardSpec, {"bias_in": False}, r"True for .*bias_in = False"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_model_that_no_class_computes_names_its_field(name: str) -> None:
    origin, kind, changes, message = MISFITS[name]
    spec = edited(shrink(preset(origin).spec), kind, lambda value: value.but(**changes))
    with pytest.raises(SpecError, match=f"the nearest, .* has {message}"):
        fitting([FAMILIES[preset(origin).family]], spec)


def test_a_post_norm_names_the_norm() -> None:
    def turned(sublayer: SublayerSpec) -> SublayerSpec:
        return sublayer.but(norm_in=None, norm_sum=sublayer.norm_in)

    spec = edited(shrink(preset("gpt2").spec), SublayerSpec, turned)
    with pytest.raises(SpecError, match=r"GPT2LMHeadModel has LayerNorm for .*norm_in = None"):
        fitting([FAMILIES["gpt2"]], spec)


def test_one_layer_unlike_the_others_is_found() -> None:
    spec = shrink(preset("llama-7b").spec)
    *most, last = spec.stack.blocks
    last = edited(last, GatedFeedForwardSpec, lambda feed: feed.but(d_ff=52))
    spec = spec.but(stack=spec.stack.but(blocks=(*most, last)))
    with pytest.raises(SpecError, match=r"\d+ for stack.blocks\[1\].sublayers\[1\].*d_ff = 52"):
        fitting(FAMILIES.values(), spec)


def test_an_encoder_is_named() -> None:
    with pytest.raises(SpecError, match="the model has no LearnedPositions"):
        fitting([FAMILIES["gpt2"]], preset("transformer-base").spec)


def test_values_that_are_normed_are_told_from_those_of_a_class_that_scales_them() -> None:
    with pytest.raises(SpecError, match="MiMoV2FlashForCausalLM has "):
        fitting([FAMILIES["mimo_v2_flash"]], shrink(preset("gemma4-26b-a4b")))


@pytest.mark.parametrize(
    ("origin", "kind", "changes"),
    [
        ("llama-7b", GQASpec, {"bias_query": True, "bias_key": True, "bias_value": True, "bias_output": True}),
        ("llama-7b", GatedFeedForwardSpec, {"bias_in": True, "bias_out": True}),
        ("llama-7b", GatedFeedForwardSpec, {"activation": GELU(form="quick")}),
        ("llama-7b", RotarySpec, {"scaling": LinearScaling(factor=3.0)}),
        ("llama-7b", TableSpec, {"shared": "words"}),
        ("gpt2", FeedForwardSpec, {"activation": ReLU(), "d_ff": 40}),
        ("gpt2", TableSpec, {"shared": None}),
        ("gpt2", AttentionSpec, {"scale": ScaleSpec(power=0.0)}),
    ],
    ids=str,
)
def test_variants_that_a_class_computes(origin: str, kind: type[Spec], changes: dict[str, Any]) -> None:
    """And their tensors are covered: `their_shapes` refuses a table of rows that leaves one out."""
    spec = edited(shrink(preset(origin).spec), kind, lambda value: value.but(**changes))
    family, _ = fitting(FAMILIES.values(), spec)
    assert their_shapes(family.rows(spec), spec)


def test_rows_that_miss_a_tensor_or_name_one_twice_are_refused() -> None:
    spec = shrink(preset("gpt2").spec)
    rows = FAMILIES["gpt2"].rows(spec)
    last = rows[-1].ours[0]
    with pytest.raises(SpecError, match=f"do not name each tensor of the model once: {last}"):
        their_shapes(rows[:-1], spec)
    with pytest.raises(SpecError, match=f"once: {last}"):
        their_shapes([*rows, rows[-1]], spec)


def test_what_rows_do_to_tensors() -> None:
    """Conv1D holds (in, out): by hand, two outputs each of queries, keys and values, of three inputs."""
    whole = torch.arange(18.0).view(3, 6)
    row = fused(("q", "k", "v"), "c_attn", turned=True)
    q, k, v = row.load((whole,))
    assert q.tolist() == [[0, 6, 12], [1, 7, 13]]
    assert k.tolist() == [[2, 8, 14], [3, 9, 15]]
    assert v.tolist() == [[4, 10, 16], [5, 11, 17]]
    assert torch.equal(row.save((q, k, v))[0], whole)
    assert fused(("a",), "b", turned=True).load((whole,))[0].tolist() == whole.T.tolist()
    assert same("a", "b", "c") == TensorRow(("a",), ("b",), same("a", "b").load, same("a", "b").save, ("c",))


def test_a_window_of_the_encoder_alone_fits_no_class() -> None:
    model = preset("t5-small").spec
    assert model.encoder is not None
    encoder = changed(model.encoder, AttentionSpec, mask=SlidingWindow(size=Window(4)))
    with pytest.raises(SpecError, match="no class of transformers computes this model"):
        fitting(FAMILIES.values(), model.but(encoder=encoder))


def test_an_encoder_reads_no_memory() -> None:
    model = preset("transformer-base").spec
    assert model.encoder is not None
    with pytest.raises(SpecError, match=r"Attention\.reads = 'memory' needs an encoder"):
        parameters(model.but(encoder=changed(model.encoder, AttentionSpec, reads="memory")))


@pytest.mark.parametrize("d_model", [2, 3])
def test_sinusoids_of_one_pair(d_model: int) -> None:
    """Their exponents are shares of all pairs but one."""
    sizes = dict.fromkeys((f"{side}_{what}" for side in ("encoder", "decoder") for what in ("layers", "ffn_dim")), 1)
    heads = {f"{side}_attention_heads": 1 for side in ("encoder", "decoder")}
    spec = read({"model_type": "m2m_100", "vocab_size": 20, "d_model": d_model, **sizes, **heads})
    refused = f"'half-1' has no exponent for the one pair of a width of {d_model}; take d"
    with pytest.raises(SpecError, match=refused):
        parameters(spec)
    with pytest.raises(SpecError, match=refused):
        FAMILIES["fsmt"].rows(spec)  # whose files hold the table


def test_what_misfits_is_told_and_no_name_that_nothing_else_shares() -> None:
    spec = with_classifier(preset("mamba-130m").spec, 2)
    with pytest.raises(SpecError, match=r"MambaForCausalLM has 'lm' for heads\[0\].name = 'classes'"):
        fitting(FAMILIES.values(), spec)
