"""Settings whose class, made of them, says what they mean: its files, read here, compute what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES
from anyformer.families.hf.mapping import spec_of
from anyformer.layers import RouterSpec
from tests.families.test_hybrids_hf import NEMOTRON
from tests.families.test_hybrids_hf import SIZES as HYBRID
from tests.families.test_today_hf import GEMMA4, LATENT, SIZES
from tests.laws.parity import InDouble
from tests.laws.tolerance import FLOAT64, close

DELTA = {
    **HYBRID,
    "head_dim": 8,
    "hidden_act": "gelu",
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 12),
}
DELTA_EXPERTS = {name: value for name, value in DELTA.items() if name != "intermediate_size"}
DELTA_EXPERTS |= {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e2, "factor": 3.0, "original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "rope_theta": 1e2, "factor": 4.0, "original_max_position_embeddings": 16}
LONG |= {"short_factor": [1.1] * 8, "long_factor": [2.2] * 8}
NEO = {"vocab_size": 101, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 5}
NEO |= {"attention_types": [[["global"], 2]], "bos_token_id": None, "eos_token_id": None}
GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("nemotron_h", {**NEMOTRON, "hybrid_override_pattern": "EM*M", "time_step_min": 0.8, "time_step_max": 1.2}),
    ("qwen3_next", DELTA_EXPERTS),
    ("qwen3_5_text", DELTA),
    ("qwen3_5_moe_text", DELTA_EXPERTS),
    ("olmo_hybrid", {**DELTA, "pad_token_id": None}),
    ("minicpm3", {**LATENT, "rope_parameters": {**YARN, "mscale_all_dim": 0.7}}),
    ("nanochat", {**SIZES, "rope_parameters": YARN}),
    ("nanochat", {**SIZES, "rope_parameters": LONG, "max_position_embeddings": 64}),
    ("gemma4_text", {**SIZES, **GEMMA4, "head_dim": 32, "num_key_value_heads": 1}),
    ("gpt_neo", {**NEO, "attention_layers": ["local", "global"]}),
]
ENCODER = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
SWITCH = {"vocab_size": 101, "d_model": 32, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 4, "num_experts": 4}
UNSAID: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("granite_swa", "granitemoe_swa", "cohere2_moe", "apertus1p5_text"), SIZES),
    **{name: {**ENCODER, "pad_token_id": 1} for name in ("albert", "big_bird", "esm", "xlm-roberta-xl")},
    "switch_transformers": SWITCH,
}


@pytest.mark.parametrize("hf_type", UNSAID)
def test_what_is_not_said_is_what_the_class_takes(hf_type: str) -> None:
    settings = {"model_type": hf_type, **UNSAID[hf_type]}
    theirs = transformers.AutoConfig.for_model(**settings).to_dict()
    assert spec_of(FAMILIES, settings, "ours")[1] == spec_of(FAMILIES, theirs, "theirs")[1]


@pytest.mark.parametrize("hf_type", ["mixtral", "gpt_oss", "granitemoe", "llama4_text", "minimax_m3_vl_text"])
def test_a_mixture_may_have_fewer_experts_than_its_preset_chooses(hf_type: str) -> None:
    settings = {**SIZES, "model_type": hf_type, "num_local_experts": 1, "num_experts_per_tok": 1}
    router = next(spec_of(FAMILIES, settings, "config.json")[1].nested(RouterSpec))
    assert (router.n_experts, router.top_k) == (1, 1)


@pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=[f"{t} {i}" for i, (t, _) in enumerate(GIVEN)])
def test_files_of_the_class_compute_what_it_does(hf_type: str, settings: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(hf_type, **settings)
    kind: Any = getattr(transformers, FAMILIES[hf_type].architecture)
    torch.manual_seed(0)
    ids = torch.randint(6, 101, (2, 40))
    with InDouble(), torch.no_grad():
        theirs = kind._from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        theirs.save_pretrained(tmp_path)
        close(af.load(tmp_path)[0](ids).logits, theirs(ids, use_cache=False).logits, FLOAT64)


@pytest.mark.parametrize(
    ("hf_type", "name", "value"),
    [
        ("smollm3", "no_rope_layers", [[1], [0]]),
        ("llama4_text", "moe_layers", [[0]]),
        ("minimax", "attn_type_list", [[1], [0]]),
        ("minimax_m3_vl_text", "moe_layer_freq", [[1], [0]]),
        ("deepseek_v4", "compress_ratios", [[4], [0]]),
    ],
)
def test_lists_within_lists_are_refused_by_name(hf_type: str, name: str, value: list[list[int]]) -> None:
    sizes = {"num_hidden_layers": 2, "intermediate_size": 16, "num_key_value_heads": 1}
    settings = {**SIZES, **sizes, "model_type": hf_type, name: value}
    with pytest.raises(CheckpointError, match=f"{name} = .* must be "):
        spec_of(FAMILIES, settings, "config.json")
