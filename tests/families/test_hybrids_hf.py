"""Configurations of hybrids: what their classes make of them, off every default, is what we make of them, both ways; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.compose import changed, with_layers
from anyformer.families.hf.mapping import computed, misfits, spec_of
from anyformer.hub import load
from anyformer.layers import AttentionSpec, GatedDeltaNetSpec, LayerNormSpec, MoESpec, S6Spec, SSDSpec
from anyformer.model import Transformer
from anyformer.spec import ModelSpec, Spec, parameters
from tests.laws.inputs import inputs
from tests.laws.parity import InDouble, in_double, rounding
from tests.laws.tolerance import FLOAT64, close, distance

SIZES = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
S6 = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6}
JAMBA = {**SIZES, "mamba_d_state": 6, "num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1}
ZAMBA2 = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "n_mamba_heads": 4,
    "mamba_d_state": 6,
    "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
}
INKLING = {
    **SIZES,
    "head_dim": 8,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 1,
    "swa_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "rel_extent": 6,
    "sliding_window_size": 4,
    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
}
KDA = {"linear_num_heads": 3, "linear_head_dim": 8, "linear_conv_kernel_dim": 3}
KIMI = {
    **SIZES,
    "num_hidden_layers": 5,
    **KDA,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_token": 2,
}
NEMOTRON = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 24,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 20,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_routed_experts": 4,
    "mamba_num_heads": 4,
    "mamba_head_dim": 12,
    "ssm_state_size": 6,
    "n_groups": 2,
}
H1 = {
    **SIZES,
    "num_hidden_layers": 2,
    "mamba_n_heads": 4,
    "mamba_d_ssm": 48,
    "mamba_d_state": 6,
    "mamba_n_groups": 2,
}
MULTIPLIERS = {
    "embedding_multiplier": 5.5,
    "lm_head_multiplier": 0.7,
    "key_multiplier": 0.4,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.9, 0.8, 1.2, 1.1, 0.7],
    "mlp_multipliers": [0.9, 0.5],
}
RWKV4 = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 5}
GRIFFIN = {**SIZES, "hidden_activation": "gelu"}
MINIMAX = {**SIZES, "num_local_experts": 4}
LFM2_MOE = {**SIZES, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
LFM2_MOE |= {"layer_types": ["conv", "full_attention", "conv", "conv"]}
ALPHAS, BETAS = (
    tuple(f"{at}_{word}_factor" for at in ("full_attn", "linear_attn", "mlp")) for word in ("alpha", "beta")
)
GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("mamba", S6),
    ("mamba", {**S6, "expand": 3, "conv_kernel": 3, "use_bias": True, "use_conv_bias": False, "time_step_rank": 5}),
    ("falcon_mamba", {**S6, "tie_word_embeddings": False}),
    ("falcon_mamba", {**S6, "mixer_rms_eps": 1e-2, "layer_norm_epsilon": 1e-3, "use_bias": True}),
    ("jamba", JAMBA),
    ("jamba", {**JAMBA, "num_experts": 1, "mamba_dt_rank": 3, "mamba_proj_bias": True, "mamba_conv_bias": False}),
    ("jamba", {**JAMBA, "expert_layer_period": 3, "expert_layer_offset": 2, "attn_layer_period": 9}),
    ("zamba2", ZAMBA2),
    ("zamba2", {**ZAMBA2, "layers_block_type": ["hybrid"] * 5, "num_mem_blocks": 2, "mamba_ngroups": 2}),
    (
        "zamba2",
        {
            **ZAMBA2,
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
            "add_bias_linear": True,
            "rms_norm_eps": 1e-2,
            "time_step_min": 0.2,
            "hidden_act": "silu",
            "mamba_d_conv": 3,
            "adapter_rank": 5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 3e3},
        },
    ),
    ("kimi_linear", KIMI),
    ("kimi_linear", {**KIMI, "q_lora_rank": 12, "num_expert_group": 2, "topk_group": 1, "num_shared_experts": 2}),
    (
        "kimi_linear",
        {
            **KIMI,
            "layer_types": ["full_attention", "linear_attention"] * 2 + ["linear_attention"],
            "mlp_layer_types": ["sparse", "dense"] * 2 + ["sparse"],
            "moe_renormalize": False,
            "rms_norm_eps": 1e-3,
        },
    ),
    (
        "nemotron_h",
        {**NEMOTRON, "layers_block_type": ["mlp", "linear_attention", "full_attention", "linear_attention"]},
    ),
    ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "MEME*-"}),
    ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "EM*", "n_group": 2, "norm_topk_prob": False}),
    (
        "nemotron_h",
        {
            **NEMOTRON,
            "hybrid_override_pattern": "EM*E",
            "moe_latent_size": 12,
            "time_step_min": 0.8,
            "time_step_max": 1.2,
        },
    ),
    ("falcon_h1", H1),
    ("falcon_h1", {**H1, **MULTIPLIERS}),
    ("falcon_h1", {**H1, **MULTIPLIERS, "mamba_rms_norm": True, "mlp_multipliers": [1.0, 0.5], "mlp_bias": True}),
    (
        "falcon_h1",
        {**H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False, "attention_bias": True, "head_dim": 16},
    ),
    ("falcon_h1", {**H1, "mamba_d_ssm": None, "mamba_proj_bias": True, "projectors_bias": True, "hidden_act": "gelu"}),
    ("recurrent_gemma", GRIFFIN),
    (
        "recurrent_gemma",
        {**GRIFFIN, "lru_width": 48, "attention_bias": True, "block_types": ["attention", "recurrent"]},
    ),
    ("recurrent_gemma", {**GRIFFIN, "conv1d_width": 2, "attention_window_size": 5, "logits_soft_cap": 3.0}),
    ("rwkv", RWKV4),
    (
        "rwkv",
        {**RWKV4, "attention_hidden_size": 20, "intermediate_size": 24, "layer_norm_epsilon": 1e-2, "rescale_every": 0},
    ),
    ("rwkv", {**RWKV4, "tie_word_embeddings": True}),
    ("minimax", MINIMAX),
    (
        "minimax",
        {
            **MINIMAX,
            **dict.fromkeys(ALPHAS, 3.5),
            **dict.fromkeys(BETAS, 0.7),
            "head_dim": 12,
            "rms_norm_eps": 1e-3,
            "hidden_act": "gelu",
            "sliding_window": 5,
            "layer_types": ["linear_attention"] * 2 + ["full_attention", "linear_attention"],
        },
    ),
    ("lfm2_moe", LFM2_MOE),
    (
        "lfm2_moe",
        {
            **LFM2_MOE,
            "num_dense_layers": 0,
            "use_expert_bias": False,
            "routed_scaling_factor": 2.5,
            "conv_bias": True,
            "conv_L_cache": 2,
            "norm_eps": 1e-2,
            "tie_word_embeddings": False,
        },
    ),
    ("lfm2_moe", {**LFM2_MOE, "num_dense_layers": 1, "norm_topk_prob": False, "rope_parameters": {"rope_theta": 5e3}}),
    ("lfm3", {**SIZES, "num_hidden_layers": 5, "head_dim": 8, "sliding_window": 6}),
    (
        "lfm3",
        {
            **SIZES,
            "head_dim": 16,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "attention_bias": True,
            "conv_bias": True,
            "conv_L_cache": 2,
            "norm_eps": 1e-2,
            "tie_word_embeddings": False,
            "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention", "conv", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "proportional", "rope_theta": 3e3, "partial_rotary_factor": 0.25},
                "full_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
    ),
    ("lfm3", {**SIZES, "head_dim": 8, "sliding_window": None, "layer_types": ["conv", "full_attention"] * 2}),
    ("inkling_text", INKLING),
    (
        "inkling_text",
        {
            **INKLING,
            "log_scaling_n_floor": 3,
            "log_scaling_alpha": 0.7,
            "d_rel": 5,
            "n_shared_experts": 3,
            "route_scale": 2.5,
            "logits_mup_width_multiplier": 3.0,
            "conv_kernel_size": 3,
            "rms_norm_eps": 1e-3,
            "mlp_layer_types": ["dense", "sparse"] * 2,
            "hidden_act": "gelu",
        },
    ),
    ("inkling_text", {**INKLING, "conv_kernel_size": 1, "n_shared_experts": 1, "layer_types": ["hybrid"] * 4}),
]
each_given = pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=[f"{t} {i}" for i, (t, _) in enumerate(GIVEN)])


def read(hf_type: str, settings: dict[str, Any]) -> ModelSpec:
    return spec_of(FAMILIES, {"model_type": hf_type, **settings}, "config.json")[1]


@each_given
def test_what_is_read_is_what_the_class_makes_of_it(hf_type: str, settings: dict[str, Any]) -> None:
    """The configuration of transformers, which spells every default out, means the same to us; ours is read as it was."""
    config = transformers.AutoConfig.for_model(
        hf_type, **settings, pad_token_id=None, bos_token_id=None, eos_token_id=None
    )
    ours = read(hf_type, settings)
    assert ours == spec_of(FAMILIES, config.to_dict(), "theirs")[1]
    assert not misfits(FAMILIES[hf_type], ours)[1]
    with torch.device("meta"):
        model = getattr(transformers, FAMILIES[hf_type].architecture)(config)
    assert parameters(ours).total == sum(p.numel() for p in model.parameters())


@each_given
def test_its_own_class_computes_alike_to_rounding(
    hf_type: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also after its files, as it writes them, were read."""
    monkeypatch.setattr("tests.laws.parity.FAMILIES", {hf_type: FAMILIES[hf_type]})
    spec = read(hf_type, settings)
    found = in_double(spec, inputs("right", spec.vocab_size), tmp_path)
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_stream_that_is_halved_leaves_more_to_eps(every: int, tmp_path: Path) -> None:
    """As RWKV-4's class has it where it is not trained: that is the model of its files, and it is written again as they were."""
    said = {**RWKV4, "layer_norm_epsilon": 1e-3, "rescale_every": every}
    with InDouble(), torch.no_grad():
        theirs = transformers.RwkvForCausalLM(transformers.RwkvConfig(**said)).eval()
        theirs.save_pretrained(tmp_path)
        ids = torch.randint(101, (2, 17), generator=torch.Generator().manual_seed(0))
        ours, _ = load(tmp_path)
        expected = theirs(ids).logits
        close(ours(ids).logits, expected, FLOAT64)
        spec = ours.spec
        plain = Transformer(read("rwkv", {**said, "rescale_every": 0}))
        plain.load_state_dict(ours.state_dict())
        assert distance(plain(ids).logits, expected) > 1e6 * FLOAT64
    assert FAMILIES["rwkv"].to_config(spec)["rescale_every"] == every
    eps = [next(block.nested(LayerNormSpec)).eps for block in spec.stack.blocks]
    odd = with_layers(spec, [changed(spec.stack.blocks[0], LayerNormSpec, eps=each) for each in (*eps[:-1], 0.5)])
    assert misfits(FAMILIES["rwkv"], odd)[1]


def test_tables_of_decays_are_those_that_minimax_makes() -> None:
    """Its class is compared with these in their places, so they are held against its own."""
    family, spec = (
        FAMILIES["minimax"],
        read("minimax", {**MINIMAX, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}),
    )
    config = transformers.AutoConfig.for_model("minimax", **family.to_config(spec))
    own = dict(transformers.AutoModelForCausalLM.from_config(config).named_buffers())
    tables = {row.theirs[0]: row.save(())[0] for row in family.rows(spec) if not row.ours and row.theirs}
    assert {name for name in own if "rotary" not in name} == set(tables)
    for name, table in tables.items():
        torch.testing.assert_close(table, own[name], atol=1e-6, rtol=1e-4)


def kinds(spec: ModelSpec, *wanted: type[Spec]) -> str:
    """The number of the first wanted kind in each layer."""
    found = [{type(value) for value in block.nested()} for block in spec.stack.blocks]
    return "".join(str(next(i for i, kind in enumerate(wanted) if kind in layer)) for layer in found)


def test_layers_are_of_the_kinds_that_are_said() -> None:
    released = {**KIMI, "linear_attn_config": {"full_attn_layers": [3, 5], "num_heads": 2}}
    kimi = read("kimi_linear", released)
    assert kinds(kimi, GatedDeltaNetSpec, AttentionSpec) == "00101"
    assert next(v for v in kimi.nested() if isinstance(v, GatedDeltaNetSpec)).n_heads == 2
    jamba = read("jamba", {**JAMBA, "num_hidden_layers": 7})
    assert kinds(jamba, S6Spec, AttentionSpec) == "0100100"
    assert [any(isinstance(v, MoESpec) for v in b.nested()) for b in jamba.stack.blocks] == [False, True] * 3 + [False]
    nemotron = read("nemotron_h", {**NEMOTRON, "layers_block_type": ["mamba", "attention", "moe"]})
    assert kinds(nemotron, SSDSpec, AttentionSpec, MoESpec) == "012"


@pytest.mark.parametrize(
    ("hf_type", "settings", "says"),
    [
        ("mamba", {**S6, "hidden_act": "softmax"}, "hidden_act = 'softmax'"),
        ("mamba", {**S6, "time_step_rank": "some"}, "time_step_rank = 'some' must be of type int"),
        (
            "jamba",
            {**JAMBA, "attn_layer_offset": 3},
            r"attn_layer_offset = 3 must be from 0 to attn_layer_period - 1 = 2",
        ),
        ("jamba", {**JAMBA, "expert_layer_period": 0}, "expert_layer_period"),
        ("kimi_linear", {**KIMI, "mla_use_nope": False}, "mla_use_nope = False is not computed here"),
        (
            "kimi_linear",
            {**KIMI, "linear_attn_config": {"full_attn_layers": [0]}},
            "some of the 5 layers, by numbers from 1",
        ),
        ("kimi_linear", {**KIMI, "layer_types": ["sliding_attention"] * 5}, "layer_types = .* must be 5 times"),
        (
            "nemotron_h",
            {**NEMOTRON, "hybrid_override_pattern": "MX"},
            "layers_block_type = .* has 'X'; a layer is linear",
        ),
        ("nemotron_h", {**NEMOTRON, "moe_latent_size": 0}, "moe_latent_size = 0 must be above 0"),
        (
            "recurrent_gemma",
            {**GRIFFIN, "lru_width": 30},
            "lru_width = 30 must be a multiple of num_attention_heads = 4",
        ),
        (
            "recurrent_gemma",
            {**GRIFFIN, "block_types": ["conv"]},
            "block_types = .* must be words of recurrent and attention",
        ),
        ("falcon_h1", {**H1, "mamba_d_ssm": 30}, r"mamba_d_ssm = 30 must be mamba_n_heads · mamba_d_head = 28"),
        ("falcon_h1", {**H1, "ssm_multipliers": [1.0, 2.0]}, "ssm_multipliers = .* must be five numbers"),
        ("falcon_h1", {**H1, "mlp_multipliers": [0.5]}, "mlp_multipliers = .* must be two numbers"),
        ("falcon_h1", {**H1, "projectors_bias": True}, "projectors_bias = True must be mamba_proj_bias = False"),
        ("falcon_h1", {**H1, **MULTIPLIERS, "mlp_bias": True}, "mlp_bias = True goes with no multiplier of gates here"),
        ("falcon_h1", {**H1, "hidden_act": "gelu", "mlp_multipliers": [0.5, 1.0]}, "hidden_act = 'gelu' goes with"),
        ("rwkv", {**RWKV4, "rescale_every": -1}, "rescale_every = -1 is no number that a model has"),
        ("minimax", {**MINIMAX, "block_size": 64}, "block_size = 64 is not computed here"),
        ("minimax", {**MINIMAX, "mlp_alpha_factor": 2}, "mlp_alpha_factor = 2 must be full_attn_alpha_factor = 1.0"),
        (
            "minimax",
            {**MINIMAX, "attn_type_list": [0, 1]},
            "attn_type_list = .* must be 4 times 1, for a layer that attends",
        ),
        ("minimax", {**MINIMAX, "layer_types": ["conv"] * 4}, "layer_types = .* must be 4 times linear_attention or"),
        ("lfm3", {**SIZES, "head_dim": 8, "layer_types": ["conv"] * 3}, "layer_types = .* must be 4 times conv or"),
        (
            "lfm3",
            {**SIZES, "head_dim": 8, "sliding_window": None, "layer_types": ["sliding_attention"] * 4},
            "sliding_window = None leaves the sliding layers without a window",
        ),
        (
            "lfm3",
            {**SIZES, "head_dim": 8, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
            "full_attention: partial_rotary_factor = 0.5 is not computed here; only 1.0 is",
        ),
        (
            "lfm3",
            {**SIZES, "head_dim": 8, "rope_theta": 77.0},
            "rope_theta = 77.0 is not computed here; only 1000000.0",
        ),
        (
            "olmo_hybrid",
            {**SIZES, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5 is not computed here; only 1.0 is",
        ),
        ("zamba2", {**ZAMBA2, "tie_word_embeddings": False}, "tie_word_embeddings = False is not computed here"),
        ("zamba2", {**ZAMBA2, "use_long_context": True}, "use_long_context = True is not computed here"),
        ("zamba2", {**ZAMBA2, "num_key_value_heads": 2}, "num_key_value_heads = 2 is not computed here; only 4 is"),
        (
            "zamba2",
            {**ZAMBA2, "num_attention_heads": 5},
            "num_attention_heads = 5 does not divide twice hidden_size = 32",
        ),
        ("zamba2", {**ZAMBA2, "layers_block_type": None}, "must be 5 times linear_attention or hybrid"),
        ("zamba2", {**ZAMBA2, "mamba_headdim": 10}, "mamba_expand = None times hidden_size = 32 must be"),
        ("lfm2_moe", {**LFM2_MOE, "layer_types": None}, "layer_types = None must be 4 times conv or full_attention"),
        ("lfm2_moe", {**LFM2_MOE, "num_experts_per_tok": 5}, "top_k = 5 must be from 1 to n_experts = 4"),
        ("lfm2_moe", {**LFM2_MOE, "moe_layer_freq": 2}, "moe_layer_freq = 2 is not computed here; only 1 is"),
        ("inkling_text", {**INKLING, "n_shared_experts": 0}, "n_shared_experts = 0 must be above 0"),
        ("inkling_text", {**INKLING, "log_scaling_n_floor": 0}, "log_scaling_n_floor = 0 must be above 0"),
        ("inkling_text", {**INKLING, "unpadded_vocab_size": 0}, "unpadded_vocab_size = 0 must be above 0"),
        ("inkling_text", {**INKLING, "layer_types": ["hybrid"]}, "must be 4 times hybrid_sliding or hybrid"),
        (
            "inkling_text",
            {**INKLING, "layer_types": None, "local_layer_ids": [0.5]},
            "must be a list of some of the",
        ),
    ],
)
def test_refused_in_a_line(hf_type: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as error:
        read(hf_type, settings)
    assert "\n" not in str(error.value)


def test_other_names_of_inklings_settings() -> None:
    """Its released files say dense layers by how many are first, and experts' width by another name."""
    said = {
        **INKLING,
        "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 2,
        "layer_types": ["hybrid_sliding", *["hybrid"] * 3],
    }
    there = {"mlp_layer_types", "layer_types", "intermediate_size", "moe_intermediate_size", "sliding_window_size"}
    other = {name: value for name, value in said.items() if name not in {*there, "n_routed_experts"}}
    other |= {"dense_mlp_idx": 2, "local_layer_ids": [0], "intermediate_size": 16, "dense_intermediate_size": 24}
    other |= {"sliding_window": 4, "num_local_experts": 4, "model_max_length": 50, "sconv_kernel_size": 3}
    expected = read("inkling_text", {**said, "max_position_embeddings": 50, "conv_kernel_size": 3})
    assert read("inkling_text", other) == expected
    assert read("inkling_text", transformers.InklingTextConfig(**other).to_dict()) == expected


def test_rows_of_inklings_head_beyond_its_vocabulary_give_no_logits(tmp_path: Path) -> None:
    said = {**INKLING, "unpadded_vocab_size": 90}
    spec = read("inkling_text", said)
    assert (spec.vocab_size, spec.n_scored) == (101, 90)
    assert not misfits(FAMILIES["inkling_text"], spec)[1]
    assert read("inkling_text", {**said, "unpadded_vocab_size": 300}) == read("inkling_text", INKLING)
    found = in_double(spec, inputs("right", 90), tmp_path)
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)


RELEASED_LFM2: dict[str, Any] = {
    "block_auto_adjust_ff_dim": True,
    "block_dim": 1024,
    "block_ff_dim": 6656,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-5,
    "block_out_init_scale": 1.0,
    "block_use_swiglu": True,
    "block_use_xavier_init": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 1024,
    "conv_dim_out": 1024,
    "conv_use_xavier_init": True,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "num_attention_heads": 16,
    "num_heads": 16,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1e6,
    "use_pos_enc": True,
    "vocab_size": 65_536,
}


def test_released_files_of_lfm2_say_much_again() -> None:
    """Settings of the release of July 2025: none of those that its class passes over may be something else."""
    assert computed(read("lfm2", RELEASED_LFM2)) == computed(preset("lfm2-350m").spec)
    untied = read("lfm2", {**RELEASED_LFM2, "tie_embedding": False})
    assert not transformers.Lfm2Config(**{**RELEASED_LFM2, "tie_embedding": False}).tie_word_embeddings
    assert parameters(untied).total == 354_483_968 + 65_536 * 1024
    for name, other in (("block_use_swiglu", False), ("conv_dim", 512), ("num_heads", 8)):
        with pytest.raises(CheckpointError, match=f"{name} = {other} is not computed here"):
            read("lfm2", {**RELEASED_LFM2, name: other})
