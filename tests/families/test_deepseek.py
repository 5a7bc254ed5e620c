"""DeepSeek's presets have the published sizes, active parameters and caches; its released configurations are read."""

from __future__ import annotations

from typing import Any

import pytest

from anyformer.costs import cost
from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES, preset
from anyformer.families.hf.mapping import fitting, spec_of
from anyformer.layers import AttentionSpec, MLASpec, MoESpec, RotarySpec, RouterSpec, YaRN
from anyformer.resizing import shrink
from anyformer.spec import ModelSpec, ScaleSpec, parameters

YARN = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
SHARED = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.006, "rope_theta": 10_000}
# As released; what changes no number is left in.
V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "attention_bias": False,
    "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10_944,
    "max_position_embeddings": 163_840,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102_400,
    "rope_scaling": YARN,
    **LATENT,
    **SHARED,
}
V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "max_position_embeddings": 163_840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129_280,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    **LATENT,
    **SHARED,
}


def read(config: dict[str, Any]) -> ModelSpec:
    return spec_of(FAMILIES, config, "config.json")[1]


def first(spec: ModelSpec, kind: type[Any]) -> Any:
    return next(value for value in spec.nested() if isinstance(value, kind))


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # All printed with the tables in or out; the source does not say which: architectures of both papers.
        ("deepseek-v3", 671_026_404_352, "37"),
        # Beside it a layer of experts, 2 · 7,168² for the projection and 3 · 7,168 for norms.
        ("deepseek-v3-mtp", 671_026_404_352 + 11_507_286_016 + 102_760_448 + 21_504, None),
        ("deepseek-v2", 235_741_434_880, "21"),
        ("deepseek-v2-lite", 15_706_484_224, "2.4"),
    ],
)
def test_published_totals_and_active_parameters(name: str, total: int, active: str | None) -> None:
    found = parameters(preset(name).spec)
    assert found.total == total
    if active is None:
        return
    spec = preset(name).spec
    table = spec.vocab_size * spec.stack.d_model
    without_input = (found.active - table) / 1e9
    places = len(active.partition(".")[2])
    cut = int(without_input * 10**places) / 10**places
    assert f"{without_input:.{places}f}" == active or f"{cut:.{places}f}" == active


def test_the_biases_of_the_choice_are_held_and_not_trained() -> None:
    assert parameters(preset("deepseek-v3").spec).frozen == 58 * 256


@pytest.mark.parametrize(("name", "nbytes"), [("deepseek-v3", 70_272), ("deepseek-v2", 67.5 * 1024)])
def test_published_cache(name: str, nbytes: float) -> None:
    """V3: arXiv:2505.09343, table 1; V2: 576 numbers in 60 layers."""
    assert cost(preset(name).spec, seq_len=1).cache_nbytes == nbytes


def test_prefill_is_expanded_and_decoding_absorbed() -> None:
    """2·h·(d_h + d_r + d_v) and 2·h·(2·d_c + d_r) for each pair, in 61 layers."""
    n, heads = 4096, 128 * 61
    report = cost(preset("deepseek-v3").spec, seq_len=n, convention="full-attention")
    forward, decode = report.forward_flops, report.decode_flops
    assert forward["scores"] + forward["values"] == 2 * heads * n * n * (128 + 64 + 128)
    assert decode["scores"] + decode["values"] == 2 * heads * n * (2 * 512 + 64)
    assert forward["expansion"] == 2 * heads * n * 512 * 256
    assert decode["absorption"] == 2 * heads * 512 * 256
    assert report.decode_flops_per_token == sum(decode.values())


def test_a_group_of_two_and_a_quarter_heads_keeps_as_much() -> None:
    """arXiv:2405.04434, table 1: the latent keeps what grouped-query attention of 2.25 groups does."""
    latent = cost(preset("deepseek-v2").spec, seq_len=1).cache_nbytes
    assert latent == 2.25 * 2 * 128 * 60 * 2


def test_the_files_on_hugging_face_hold_tables_twice() -> None:
    """684,531,386,000 numbers there: the scales of FP8 blocks of 128 · 128, and biases of the choice, are among them."""
    record = preset("deepseek-v3-mtp")
    total, tables = parameters(record.spec).total, 2 * 129_280 * 7168
    assert round((total + tables) / 1e8) / 10 == 684.5
    assert record.erratum is not None
    assert f"{tables / 1e9:.2f}B" in record.erratum
    assert f"{total / 1e9:.1f}B" in record.erratum


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (V2_LITE, "deepseek-v2-lite"),
        (V3, "deepseek-v3-mtp"),
        ({**V3, "num_nextn_predict_layers": 0}, "deepseek-v3"),
        ({n: v for n, v in V3.items() if n != "num_nextn_predict_layers"}, "deepseek-v3"),
        ({**V3, "num_nextn_predict_layers": None, "num_mtp_layers": 1}, "deepseek-v3-mtp"),
    ],
)
def test_the_released_configuration_is_the_preset(config: dict[str, Any], name: str) -> None:
    spec = preset(name).spec
    assert read(config).but(init=spec.init) == spec


def test_what_is_written_is_what_was_released() -> None:
    _, config = fitting(FAMILIES.values(), preset("deepseek-v3").spec)
    assert config["rope_scaling"].pop("rope_type") == "yarn"
    assert config["rope_scaling"].pop("truncate") is True
    assert config["rope_scaling"] == {k: v for k, v in V3["rope_scaling"].items() if k != "type"}
    assert {k: config[k] for k in LATENT} == LATENT


VARIANTS: list[tuple[dict[str, Any], type[Any], dict[str, Any]]] = [
    ({"rope_interleave": False}, RotarySpec, {"layout": "half"}),
    ({"attention_bias": True}, MLASpec, {"bias_down": True, "bias_output": True}),
    ({"q_lora_rank": None}, MLASpec, {"query_rank": None}),
    ({"norm_topk_prob": False}, RouterSpec, {"renormalise": False}),
    ({"rope_scaling": None}, AttentionSpec, {"scale": ScaleSpec(power=-0.5)}),
    (
        {"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}},
        YaRN,
        {"attention_factor": None},
    ),
]


@pytest.mark.parametrize(("changes", "kind", "fields"), VARIANTS, ids=str)
def test_variants_are_read_and_written(changes: dict[str, Any], kind: type[Any], fields: dict[str, Any]) -> None:
    spec = shrink(read({**V3, **changes}))
    found = first(spec, kind)
    assert found == found.but(**fields)
    family, config = fitting(FAMILIES.values(), spec)
    assert family.hf_type == "deepseek_v3"
    assert family.rows(spec)
    assert read({"model_type": "deepseek_v3", **config}).but(init=spec.init) == spec


def test_any_number_of_dense_layers() -> None:
    kinds = [
        [
            any(isinstance(v, MoESpec) for v in block.nested())
            for block in read({**V3, "first_k_dense_replace": n}).stack.blocks
        ]
        for n in (0, 2, 100)
    ]
    assert kinds == [[True] * 61, [False] * 2 + [True] * 59, [False] * 61]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**V3, "num_key_value_heads": 64}, "num_key_value_heads = 64 is not computed here; only 128 is"),
        ({**V3, "n_shared_experts": 0}, "n_shared_experts = 0 leaves an expert without width"),
        ({**V3, "num_experts_per_tok": 300}, "Router.top_k = 300 must be from 1 to n_experts = 256"),
        ({**V3, "topk_group": 9}, "Router.top_groups = 9 must be from 1 to n_groups = 8"),
        ({**V3, "n_group": 7}, "Router.n_groups = 7 must divide n_experts = 256"),
        ({**V3, "scoring_func": "softmax"}, "scoring_func = 'softmax' is not computed here; only 'sigmoid' is"),
        ({**V3, "num_nextn_predict_layers": -1}, "num_nextn_predict_layers = -1 is no number that a model has"),
        ({**V3, "moe_layer_freq": 2}, "moe_layer_freq = 2 is not computed here"),
        ({**V3, "quantization_config": {"quant_method": "fp8"}}, "quantization_config = .* is unknown here"),
        ({**V2_LITE, "topk_method": "noaux_tc"}, "topk_method = 'noaux_tc' is not computed here"),
        ({**V2_LITE, "norm_topk_prob": True}, "norm_topk_prob = True is not computed here"),
        ({**V2_LITE, "mlp_bias": True}, "mlp_bias = True is not computed here"),
        (
            {**V2_LITE, "rope_scaling": {**YARN, "type": "yarm"}},
            r"type = 'yarm' is no scaling known here \(did you mean",
        ),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        read(config)
    assert "\n" not in str(error.value)
