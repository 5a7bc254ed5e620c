"""Configurations of the open models of 2024 and 2025: what their classes take where nothing is said, their quirks, refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from anyformer.errors import CheckpointError
from anyformer.families import FAMILIES
from anyformer.families.hf.composite import known_as
from anyformer.families.hf.mapping import misfits, spec_of
from anyformer.hub import convert, load, save
from anyformer.layers import GQASpec, RotarySpec, SlidingWindow
from anyformer.model import build
from anyformer.spec import ModelSpec, Spec, parameters
from tests.laws.inputs import inputs, inputs_for
from tests.laws.parity import differences, in_double, pair, rounding
from tests.laws.tolerance import FLOAT32, distance
from tests.laws.weights import filled, telling

SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
MULTI_HEAD = {"num_key_value_heads": None}
NUMBERED = {**EXPERTS, "num_experts": 4, "num_shared_experts": 2}
LATENT = {
    **SIZES,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}
ZAYA = {
    **{name: value for name, value in SIZES.items() if name != "intermediate_size"},
    "head_dim": 8,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "router_hidden_size": 12,
}
LONGCAT = {
    **{name: value for name, value in LATENT.items() if name not in ("intermediate_size", "num_hidden_layers")},
    "ffn_hidden_size": 48,
    "num_layers": 2,
    "head_dim": 8,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "moe_topk": 3,
    "expert_ffn_hidden_size": 16,
}
UNREAD = {"longcat_flash": 2 * 2 * 2 * 16 * 64}  # gates and ups of two identities in two layers, which its class has
V4 = {
    **{name: value for name, value in SIZES.items() if name != "intermediate_size"},
    "num_key_value_heads": 1,
    "head_dim": 16,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 0.7,
    "sliding_window": 6,
    "index_n_heads": 16,
    "index_head_dim": 8,
    "index_topk": 3,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 5,
    "hc_eps": 1e-3,
    "rms_norm_eps": 1e-3,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 256,
    "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 5},
    "layer_types": [
        f"{x}_attention" for x in ("sliding", "compressed_sparse", "heavily_compressed", "compressed_sparse")
    ],
    "mlp_layer_types": ["moe", "hash_moe", "hash_moe", "moe"],
}
OF_V4 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 24.0}
LISTS = ("compress_rates", "mlp_layer_types", "layer_types")
INDEXED = {"index_n_heads": 16, "index_head_dim": 16, "index_topk": 5}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 2}
TABLES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    "full_attention": {"rope_type": "default", "rope_theta": 3e5},
}
BIG_CODE = {"vocab_size": 101, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}
DBRX = {"vocab_size": 101, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}
DBRX_TABLES = {
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10_000.0},
    "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
}
STEPS = {
    "rope_type": "yarn",
    "rope_theta": 2e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.3,
}
YARN = {name: value for name, value in STEPS.items() if name != "llama_4_scaling_beta"}
PLAIN = {name: value for name, value in {**STEPS, "rope_type": "default"}.items() if name != "factor"}
LATENT_OF_MISTRAL = {
    "num_key_value_heads": None,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
ERNIE = {"moe_intermediate_size": 16, "moe_k": 2, "moe_num_experts": 4}
GEMMA3N = {
    "vocab_size_per_layer_input": 90,
    "hidden_size_per_layer_input": 12,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
WINDOWS = ["sliding_attention"] * 2
ETTIN = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
ETTIN |= {"cls_token_id": 1, "sep_token_id": 2}  # which the class wants among the tokens
GEMMA4 = {"vocab_size_per_layer_input": 101, "hidden_size_per_layer_input": 12, "head_dim": 16, "global_head_dim": 32}
GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
LAGUNA = {"num_experts": 4, "shared_expert_intermediate_size": 20}
GLM_NEXT: dict[str, Any] = {
    **LATENT,
    **EXPERTS,
    "qk_rope_head_dim": 0,
    "n_routed_experts": 4,
    "index_n_heads": 16,
    "index_head_dim": 12,
    "index_topk": 8,
    "index_kpool": 4,
    "linear_num_heads": 2,
    "linear_head_dim": 12,
    "linear_conv_kernel_dim": 3,
    "hc_mult": 2,
}
LARGE4: dict[str, Any] = {
    **{name: value for name, value in LATENT.items() if name != "q_lora_rank"},
    **EXPERTS,
    **INDEXED,
    "n_routed_experts": 4,
}
MUSE: dict[str, Any] = {
    "num_hidden_layers": 5,
    "head_dim": 8,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"],
    "layer_rope_theta": [3e4, 3e4, 0, 0, 3e4],
    "rope_parameters": {"rope_type": "default", "rope_theta": 3e4},
    "final_logit_softcapping": 3.0,
    "output_multiplier": 0.7,
    "qk_scale_factor": 2.2,
    "post_norm_eps": 1e-2,
    "rms_norm_eps": 1e-3,
    "attention_bias": True,
    "hidden_activation": "gelu",
}
STEP: dict[str, Any] = {
    **EXPERTS,
    "n_routed_experts": 4,
    "share_expert_dim": 20,
    "head_dim": 8,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
    "rope_parameters": {**TABLES, "full_attention": {**TABLES["full_attention"], "partial_rotary_factor": 0.5}},
    "num_sliding_attention_heads": 6,
    "swiglu_limits": [None, 0.3, None, 0.3],
    "swiglu_limits_shared": [0.2, 0.4, 0.0, None],
    "moe_router_scaling_factor": 2.5,
    "rms_norm_eps": 1e-2,
    "attention_bias": True,
}
KOLIBRI = {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 20}
M3 = {
    **SIZES,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "rotary_dim": 8,
    "dense_intermediate_size": 40,
    "shared_intermediate_size": 20,
    "index_n_heads": 4,
    "index_head_dim": 12,
    "index_block_size": 3,
    "index_topk_blocks": 3,
    "index_local_blocks": 2,
    "routed_scaling_factor": 1.5,
    "swiglu_alpha": 1.5,
    "swiglu_limit": 0.7,
    "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse", "full_attention"],
    "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
}
RELEASED_M3: dict[str, Any] = {
    "sparse_attention_config": {
        "use_sparse_attention": True,
        "sparse_index_dim": 12,
        "sparse_num_index_heads": 2,
        "sparse_topk_blocks": 2,
        "sparse_block_size": 5,
        "sparse_score_type": "max",
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_attention_freq": [0, 1, 1, 1],
        "sparse_disable_index_value": [0, 1, 1, 1],
    },
    "moe_layer_freq": [0, 1, 1, 1],
    "hidden_act": "swigluoai",
    "n_shared_experts": 1,
    "use_gemma_norm": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_head",
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
}
OF_M3 = RELEASED_M3["sparse_attention_config"]
LONG = {"rope_type": "longrope", "rope_theta": 1e3, "original_max_position_embeddings": 64}
LONG |= {"short_factor": [1.1, 1.5, 2.0, 3.0], "long_factor": [1.1, 1.5, 2.0, 3.0]}
MPT = {"vocab_size": 101, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}
SCALED = {"embedding_multiplier": 5.5, "attention_multiplier": 0.1, "logits_scaling": 3.0, "residual_multiplier": 0.4}
JETMOE = {
    **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")},
    "num_key_value_heads": 2,
    "kv_channels": 16,
    "num_local_experts": 5,
}
GIVEN: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", SIZES),
    ("qwen3", {**SIZES, "head_dim": 8, "attention_bias": True, "use_sliding_window": True, "max_window_layers": 2}),
    ("qwen3_moe", {**SIZES, **EXPERTS, "num_experts": 4}),
    ("qwen3_moe", {**SIZES, **EXPERTS, "num_experts": 4, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    ("olmo3", SIZES),
    ("olmo3", {**SIZES, "rope_parameters": TABLES, "sliding_window": 7}),
    ("olmoe", {**SIZES, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}),
    ("glm", SIZES),
    ("glm4", {**SIZES, "attention_bias": False, "partial_rotary_factor": 1.0, "head_dim": 16}),
    ("glm4_moe", {**SIZES, **ROUTED, "use_qk_norm": True, "first_k_dense_replace": 2}),
    ("ministral", {**SIZES, "head_dim": 16}),
    ("ministral", {**SIZES, "head_dim": 8, "sliding_window": None}),
    ("smollm3", SIZES),
    ("smollm3", {**SIZES, "no_rope_layers": [0, 1, 1, 0], "mlp_bias": True}),
    ("seed_oss", SIZES),
    ("seed_oss", {**SIZES, "attention_out_bias": True, "mlp_bias": True, "head_dim": 8}),
    ("ernie4_5", SIZES),
    ("ernie4_5", {**SIZES, "use_bias": True}),
    ("arcee", {**SIZES, "mlp_bias": True}),
    ("exaone4", SIZES),
    ("exaone4", {**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 4}),
    ("gpt_bigcode", BIG_CODE),
    ("gpt_bigcode", {**BIG_CODE, "multi_query": False, "scale_attn_weights": False}),
    ("starcoder2", SIZES),
    ("starcoder2", {**SIZES, "use_bias": False, "sliding_window": 9, "tie_word_embeddings": False}),
    ("stablelm", SIZES),
    ("stablelm", {**SIZES, "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True}),
    ("hunyuan_v1_dense", {**SIZES, "rope_theta": 5e4, "head_dim": 8}),
    ("granite", {**SIZES, "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "logits_scaling": 8.0}),
    ("granite", {**SIZES, "residual_multiplier": 0.22, "mlp_bias": True}),
    ("granitemoe", {**SIZES, "num_local_experts": 4, "residual_multiplier": 0.22}),
    ("minimax_m2", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "rotary_dim": 8}),
    ("dots1", {**SIZES, **ROUTED, "first_k_dense_replace": 1, "max_window_layers": 2}),
    ("dbrx", {**DBRX, **DBRX_TABLES}),
    ("ministral3", {**SIZES, "head_dim": 16}),
    ("ministral3", {**SIZES, "head_dim": 16, "sliding_window": 7, "rope_parameters": PLAIN}),
    ("mistral4", {**SIZES, **ROUTED, **LATENT_OF_MISTRAL}),
    (
        "mistral4",
        {
            **SIZES,
            **ROUTED,
            **LATENT_OF_MISTRAL,
            "rope_interleave": False,
            "rope_parameters": {**STEPS, "mscale_all_dim": 0.7},
        },
    ),
    ("llama4_text", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("llama4_text", {**SIZES, "num_local_experts": 4, "interleave_moe_layer_step": 2, "use_qk_norm": False}),
    ("llama4_text", {**SIZES, "moe_layers": [0, 3], "no_rope_layers": [0, 1, 1, 0], "attn_temperature_tuning": False}),
    ("llama4_text", {**SIZES, "moe_layers": [1], "attention_chunk_size": 8, "floor_scale": 16, "head_dim": 8}),
    ("vaultgemma", {**SIZES, "head_dim": 8}),
    ("vaultgemma", {**SIZES, "head_dim": 16, "attn_logit_softcapping": None, "sliding_window": 7}),
    ("gemma3n_text", {**SIZES, **GEMMA3N}),
    (
        "gemma3n_text",
        {
            **SIZES,
            **GEMMA3N,
            "head_dim": 8,
            "intermediate_size": [32, 48, 48, 64],
            "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.5],
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "altup_num_inputs": 3,
            "laurel_rank": 8,
            "sliding_window": 7,
            "final_logit_softcapping": 20.0,
        },
    ),
    ("gemma4_text", {**SIZES, **GEMMA4, "num_key_value_heads": 1}),
    (
        "gemma4_text",
        {
            **SIZES,
            **GEMMA4,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "final_logit_softcapping": 20.0,
            "sliding_window": 7,
        },
    ),
    (
        "gemma4_text",
        {
            **SIZES,
            **GEMMA4,
            **GEMMA4_EXPERTS,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention"] * 2,  # of which the class makes the last full
            "use_bidirectional_attention": "vision",
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                "full_attention": {"rope_type": "proportional", "rope_theta": 3e5, "partial_rotary_factor": 0.5},
            },
        },
    ),
    ("modernbert-decoder", ETTIN),
    (
        "modernbert-decoder",
        {
            **ETTIN,
            **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias"), True),
            "decoder_bias": False,
            "tie_word_embeddings": False,
            "local_attention": 14,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": TABLES,
        },
    ),
    ("t5gemma", {"encoder": {**SIZES, "head_dim": 8}, "decoder": {**SIZES, "head_dim": 8}}),
    (
        "t5gemma",
        {
            "encoder": {**SIZES, "head_dim": 16, "hidden_size": 32, "sliding_window": 6, "query_pre_attn_scalar": 9},
            "decoder": {
                **SIZES,
                "num_hidden_layers": 3,
                "head_dim": 8,
                "attention_bias": True,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": 20.0,
                "sliding_window": 4,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            "tie_word_embeddings": False,
        },
    ),
    ("t5gemma2", {"encoder": {"text_config": {**SIZES, "head_dim": 8}}, "decoder": {**SIZES, "head_dim": 8}}),
    (
        "t5gemma2",
        {
            "encoder": {
                "text_config": {**SIZES, "head_dim": 8, "sliding_window": 7, "query_pre_attn_scalar": 9},
                "vision_config": {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "image_size": 28},
                "eoi_token_index": 90,
            },
            "decoder": {
                **SIZES,
                "num_hidden_layers": 3,
                "head_dim": 16,
                "attention_bias": True,
                "final_logit_softcapping": 20.0,
                "sliding_window": 4,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            },
            "tie_word_embeddings": False,
        },
    ),
    ("bitnet", SIZES),
    ("bitnet", {**SIZES, "attention_bias": True, "tie_word_embeddings": True}),
    ("apertus", SIZES),
    ("apertus", {**SIZES, "attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 3e4}}),
    ("nanochat", SIZES),
    ("nanochat", {**SIZES, "final_logit_softcapping": None, "attention_bias": True, "tie_word_embeddings": True}),
    ("ernie4_5_moe", {**SIZES, **ERNIE}),
    ("ernie4_5_moe", {**SIZES, **ERNIE, "moe_layer_interval": 2, "moe_layer_end_index": 3, "moe_layer_start_index": 0}),
    ("afmoe", {**SIZES, **EXPERTS, "num_experts": 4}),
    (
        "afmoe",
        {**SIZES, **EXPERTS, "num_experts": 4, "mup_enabled": True, "layer_types": ["full_attention"] * 2 + WINDOWS},
    ),
    ("helium", {**SIZES, "head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    ("cwm", {**SIZES, "head_dim": 16}),
    ("cwm", {**SIZES, "head_dim": 8, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    ("jais2", SIZES),
    ("jais2", {**SIZES, "attention_bias": False, "mlp_bias": False, "head_dim": 8}),
    ("persimmon", SIZES | MULTI_HEAD),
    ("persimmon", {**SIZES, **MULTI_HEAD, "qk_layernorm": False, "partial_rotary_factor": 0.25}),
    ("solar_open", {**SIZES, **ROUTED, "head_dim": 8, "attention_bias": True}),
    ("solar_open", {**SIZES, **ROUTED, "head_dim": 16, "norm_topk_prob": False}),
    ("glm4_moe_lite", {**LATENT, **ROUTED}),
    ("glm4_moe_lite", {**LATENT, **ROUTED, "q_lora_rank": None, "mlp_layer_types": ["sparse", "dense"] * 2}),
    ("diffllama", {**SIZES, "head_dim": 8, "attention_bias": True}),
    ("diffllama", {**SIZES, **MULTI_HEAD, "tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    ("deepseek_v32", {**LATENT, **ROUTED, **INDEXED, "n_group": 2, "topk_group": 1}),
    (
        "deepseek_v32",
        {
            **LATENT,
            **ROUTED,
            "n_group": 1,
            "topk_group": 1,
            "index_n_heads": 20,
            "index_head_dim": 8,
            "index_topk": 3,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale_all_dim": 1.0,
            },
            "max_position_embeddings": 256,
            "mlp_layer_types": ["sparse", "dense"] * 2,
        },
    ),
    ("deepseek_v4", V4),
    (
        "deepseek_v4",
        {
            **{name: value for name, value in V4.items() if name not in LISTS},
            "partial_rotary_factor": None,
            "qk_rope_head_dim": 4,
            "compress_ratios": [0, 4, 128, 4, 0],
            "compress_rate_csa": 2,
            "compress_rate_hca": 7,
            "num_hash_layers": 1,
            "scoring_func": "sigmoid",
            "hidden_act": "gelu",
            "rope_theta": 3e4,
            "compress_rope_theta": 5e4,
            "rope_scaling": OF_V4,
            "tie_word_embeddings": True,
        },
    ),
    (
        "deepseek_v4",
        {
            **V4,
            "layer_types": None,
            "rope_parameters": {
                "main": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5},
                "compress": {**OF_V4, "rope_theta": 7e4, "partial_rotary_factor": 0.5, "attention_factor": 1.2},
            },
        },
    ),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEXED, "first_k_dense_replace": 1}),
    (
        "glm_moe_dsa",
        {**LATENT, **ROUTED, **INDEXED, "indexer_types": ["full", "shared", "full", "shared"], "attention_bias": True},
    ),
    ("glm_moe_dsa", {**LATENT, **ROUTED, **INDEXED, "index_topk_freq": 3, "mlp_layer_types": ["sparse"] * 4}),
    ("longcat_flash", LONGCAT),
    (
        "longcat_flash",
        {
            **LONGCAT,
            "zero_expert_num": 0,
            "attention_bias": True,
            "routed_scaling_factor": 2.5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e5,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale_all_dim": 1.0,
            },
            "max_position_embeddings": 256,
        },
    ),
    ("exaone_moe", {**SIZES, **NUMBERED, "sliding_window": 7}),
    ("exaone_moe", {**SIZES, **NUMBERED, "first_k_dense_replace": 2, "sliding_window_pattern": 2}),
    ("exaone_moe", {**SIZES, **NUMBERED, "mlp_layer_types": ["sparse"] * 4, "n_group": 2, "head_dim": 8}),
    ("hy_v3", {**SIZES, **NUMBERED, "head_dim": 16}),
    ("hy_v3", {**SIZES, **NUMBERED, "head_dim": 8, "mlp_layer_types": ["sparse", "dense"] * 2}),
    ("mellum", {**SIZES, **EXPERTS, "num_experts": 4, "head_dim": 16}),
    (
        "mellum",
        {
            **SIZES,
            **EXPERTS,
            "num_experts": 4,
            "head_dim": 8,
            "sliding_window": 7,
            "rope_parameters": TABLES,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        },
    ),
    ("flex_olmo", {**SIZES, "num_experts": 4, "num_experts_per_tok": 3}),
    (
        "flex_olmo",
        {**SIZES, "num_experts": 2, "num_experts_per_tok": 2, "norm_topk_prob": True, "attention_bias": True},
    ),
    ("granitemoeshared", {**SIZES, "num_local_experts": 4, "residual_multiplier": 0.22}),
    (
        "granitemoeshared",
        {**SIZES, **SCALED, "num_local_experts": 3, "shared_intermediate_size": 20, "attention_bias": True},
    ),
    ("hunyuan_v1_moe", {**SIZES, "num_experts": 4, "moe_topk": 2, "head_dim": 8}),
    ("hunyuan_v1_moe", {**SIZES, "num_experts": 4, "moe_topk": [3, 2, 4, 2], "head_dim": 16, "attention_bias": True}),
    ("axk1", {**LATENT, **ROUTED, "n_group": 2, "topk_group": 1}),
    (
        "axk1",
        {
            **LATENT,
            **ROUTED,
            "n_group": 1,
            "topk_group": 1,
            "mlp_layer_types": ["sparse", "dense"] * 2,
            "rope_interleave": False,
            "attention_bias": True,
            "rms_norm_eps": 1e-2,
            "norm_topk_prob": False,
        },
    ),
    ("minicpm3", LATENT),
    (
        "minicpm3",
        {
            **LATENT,
            "q_lora_rank": None,
            "v_head_dim": None,
            "scale_emb": 3.5,
            "scale_depth": 0.7,
            "dim_model_base": 16,
            "mlp_bias": True,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-2,
            "rope_parameters": LONG,
            "max_position_embeddings": 64,
        },
    ),
    ("minicpm3", {**LATENT, "scale_depth": None, "dim_model_base": None}),
    ("zaya", ZAYA),
    (
        "zaya",
        {
            **ZAYA,
            "cca_time0": 3,
            "cca_time1": 4,
            "lm_head_bias": True,
            "tie_word_embeddings": False,
            "sliding_window": 6,
            "layer_types": ["hybrid_sliding", "hybrid"] * 2,
            "rms_norm_eps": 1e-2,
            "rope_parameters": {
                "hybrid_sliding": {"rope_type": "default", "rope_theta": 3e3, "partial_rotary_factor": 1.0},
                "hybrid": {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": 0.5},
            },
        },
    ),
    ("glm5_next_text", GLM_NEXT),
    (
        "glm5_next_text",
        {
            **GLM_NEXT,
            "layer_types": ["full_attention", "linear_attention", "indexed_attention", "indexed_attention"],
            "mlp_layer_types": ["sparse", "dense"] * 2,
            "linear_lower_bound": None,
            "swiglu_limit": 0.3,
            "hc_mult": 3,
            "hc_eps": 1e-2,
            "hc_sinkhorn_iters": 3,
            "rms_norm_eps": 1e-3,
            "attention_bias": True,
            "n_shared_experts": 2,
        },
    ),
    ("axk2", {**LATENT, **ROUTED, **INDEXED}),
    (
        "axk2",
        {
            **LATENT,
            **ROUTED,
            **INDEXED,
            "gated_norm_rank": 5,
            "mlp_layer_types": ["sparse", "dense"] * 2,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "attention_bias": True,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
            "max_position_embeddings": 64,
        },
    ),
    ("mistral_large4_text", LARGE4),
    (
        "mistral_large4_text",
        {
            **LARGE4,
            "no_rope_layers": [
                1,
                0,
                0,
                1,
            ],  # in the first layer without, a token again scores as before, and ties go either way
            "kv_source_layers": [0, 1, 1, 0],
            "indexer_types": ["full", "shared", "full", "full"],
            "mlp_layer_types": ["sparse", "dense"] * 2,
            "rope_parameters": {**YARN, "mscale_all_dim": 0.5},
            "max_position_embeddings": 64,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 2.5,
            "n_shared_experts": 2,
            "final_logit_softcapping": 3.0,
            "rms_norm_eps": 1e-3,
            "attention_bias": True,
        },
    ),
    (
        "mistral_large4_text",
        {
            **LARGE4,
            "num_hidden_layers": 6,
            "no_rope_layer_interval": 2,
            "kv_source_layers": [0, 1, 0, 1, 4, 1],
            "index_topk_freq": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
        },
    ),
    ("muse_glimmer_text", {**SIZES, "sliding_window": 7, "head_dim": 16}),
    ("muse_glimmer_text", {**SIZES, **MUSE}),
    ("step3p5", {**SIZES, **EXPERTS, "n_routed_experts": 4, "head_dim": 16, "sliding_window": 7}),
    ("step3p5", {**SIZES, **EXPERTS, **STEP}),
    (
        "step3p5",
        {
            **SIZES,
            **EXPERTS,
            **{name: value for name, value in STEP.items() if name not in ("rope_parameters", "mlp_layer_types")},
            "rope_theta": [3e3, 3e4, 3e3, 3e4, 7.0],
            "partial_rotary_factors": [1.0, 0.5, 1.0, 0.5, 1.0],
            "rope_scaling": {**YARN, "factor": 2.0},
            "layer_types": [*STEP["layer_types"], "full_attention"],
            "swiglu_limits": [0.0, 0.0, 0.3, None, 7.0],
            "moe_layers_enum": "1,2,4",
            "num_nextn_predict_layers": 1,
            "num_sliding_attention_heads": None,
            "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6},
        },
    ),
    ("laguna", {**SIZES, **EXPERTS, **LAGUNA, "head_dim": 16}),
    (
        "hy_v4",
        {
            **LATENT,
            **ROUTED,
            **INDEXED,
            "n_shared_experts": 1,
            "hc_mult": 3,
            "hc_magnitude": 1.5,
            "hc_eps": 1e-2,
            "swiglu_limit": 0.7,
            "rms_norm_eps": 1e-3,
            "indexer_types": ["full", "shared", "full", "shared"],
        },
    ),
    (
        "hy_v4",
        {**LATENT, **ROUTED, **INDEXED, "mlp_layer_types": ["sparse", "dense"] * 2, "hc_mult": 2},
    ),
    ("minimax_m3_vl_text", M3),
    (
        "minimax_m3_vl_text",
        {
            **{name: value for name, value in M3.items() if not name.startswith("index_") and "types" not in name},
            **RELEASED_M3,
        },
    ),
    (
        "laguna",
        {
            **SIZES,
            **EXPERTS,
            **LAGUNA,
            "head_dim": 8,
            "num_attention_heads_per_layer": [4, 2, 6, 8],
            "gating": "per-element",
            "moe_router_logit_softcapping": 0.7,
            "moe_routed_scaling_factor": 2.5,
            "attention_bias": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_layer_types": ["sparse", "dense"] * 2,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 3e3, "partial_rotary_factor": 1.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 2e4,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "partial_rotary_factor": 0.5,
                },
            },
            "max_position_embeddings": 256,
        },
    ),
    ("kolibri1", {**SIZES, **KOLIBRI, "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 5}),
    (
        "kolibri1",
        {
            **SIZES,
            **KOLIBRI,
            "head_dim": 8,
            "norm_topk_prob": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "tie_word_embeddings": True,
        },
    ),
    ("granitemoe_swa", {**SIZES, "num_local_experts": 4, "attention_multiplier": 0.2, "sliding_window": 5}),
    (
        "granitemoe_swa",
        {
            **SIZES,
            **SCALED,
            "num_local_experts": 3,
            "shared_intermediate_size": 20,
            "layer_rope_theta": [0, 2e4, 0.0, 3e3],
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 7,
        },
    ),
    ("cohere2_moe", {**SIZES, "num_experts": 4, "num_shared_experts": 2, "sliding_window": 5}),
    (
        "cohere2_moe",
        {
            **SIZES,
            "num_experts": 4,
            "num_shared_experts": 1,
            "shared_expert_combination_strategy": "sum",
            "expert_selection_fn": "sigmoid",
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 40,
            "sliding_window": 5,
            "sliding_window_pattern": 2,
            "rms_norm_eps": 1e-3,
            "head_dim": 16,
        },
    ),
    (
        "cohere2_moe",
        {
            **SIZES,
            "num_experts": 3,
            "num_shared_experts": 1,
            "num_experts_per_tok": 1,
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "prefix_dense_sliding_window_pattern": 2,
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
            "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
            "sliding_window": 7,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "head_dim": 8,
        },
    ),
    ("apertus1p5_text", {**SIZES, "tie_word_embeddings": True}),
    ("apertus1p5_text", {**SIZES, "output_vocab_size": 60, "attention_bias": True, "rms_norm_eps": 1e-2}),
    ("mpt", MPT),
    ("mpt", {**MPT, "d_model": 96, "n_heads": 6, "attn_config": {"clip_qkv": 0.5, "softmax_scale": 0.3}}),
    ("exaone", SIZES),
    ("exaone", {**SIZES, "num_key_value_heads": None, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    ("internlm3", {**SIZES, "head_dim": 16}),
    ("internlm3", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    ("iquestcoder", {**SIZES, "attention_bias": True}),
    ("sarvam_moe", {**SIZES, **ROUTED}),
    ("sarvam_moe", {**SIZES, **ROUTED, "use_qk_norm": False, "attention_bias": True, "partial_rotary_factor": 0.5}),
    ("sarvam_mla", {**LATENT, **ROUTED, "q_lora_rank": None}),
    ("sarvam_mla", {**LATENT, **ROUTED, "n_group": 2, "attention_bias": True, "rope_interleave": False}),
    ("hyperclovax", SIZES),
    ("hyperclovax", {**SIZES, **SCALED, "mlp_bias": True, "attention_bias": True}),
    ("hyperclovax", {**SIZES, "use_post_norm": False, "logits_scaling": 0.5}),
    ("flint", {**SIZES, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 20, "sliding_window": 5}),
    (
        "flint",
        {
            **SIZES,
            **EXPERTS,
            "num_experts": 4,
            "shared_expert_intermediate_size": 20,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "mlp_only_layers": [2],
            "norm_topk_prob": False,
            "attention_bias": True,
        },
    ),
    ("jetmoe", JETMOE),
    ("jetmoe", {**JETMOE, "num_experts_per_tok": 3, "activation_function": "gelu", "rms_norm_eps": 1e-2}),
    ("jetmoe", {**JETMOE, "kv_channels": 20, "tie_word_embeddings": False, "rope_parameters": {"rope_theta": 3e3}}),
]
# The names from here on: each is held against its own class, which the laws need not do.
OWN = [i for i, (name, _) in enumerate(GIVEN) if i > [name for name, _ in GIVEN].index("dbrx")]


def read(hf_type: str, settings: dict[str, Any]) -> ModelSpec:
    return spec_of(FAMILIES, {"model_type": hf_type, **settings}, "config.json")[1]


def first(spec: Spec, kind: type[Spec]) -> Any:
    return next((value for value in spec.nested() if isinstance(value, kind)), None)


@pytest.mark.parametrize(("hf_type", "settings"), GIVEN, ids=[f"{t} {i}" for i, (t, _) in enumerate(GIVEN)])
def test_what_is_read_is_what_the_class_makes_of_it(hf_type: str, settings: dict[str, Any]) -> None:
    """The configuration of transformers, which spells every default out, means the same to us; ours is read as it was."""
    begin = 0 if hf_type in ("cwm", "modernbert-decoder") else None  # whose classes take no null there
    pad = 0 if hf_type in ("modernbert-decoder", "step3p5") else None
    settings = {**settings, "pad_token_id": pad, "bos_token_id": begin, "eos_token_id": None}
    theirs = transformers.AutoConfig.for_model(hf_type, **settings).to_dict()
    ours = read(hf_type, settings)
    assert ours == spec_of(FAMILIES, theirs, "theirs")[1]
    assert not misfits(FAMILIES[hf_type], ours)[1]
    built: Any = getattr(transformers, FAMILIES[hf_type].architecture)
    with torch.device("meta"):
        model = built(transformers.AutoConfig.for_model(hf_type, **settings))
    learnt = sum(  # not corrections, which are buffers elsewhere, nor what sees
        p.numel()
        for name, p in model.named_parameters()
        if p.requires_grad and known_as({"model_type": hf_type})(name) and not name.endswith("eoi_embedding")
    )
    unread = UNREAD.get(hf_type, 0) if settings.get("zero_expert_num") else 0
    assert parameters(ours.but(ahead=())).total == learnt - unread


@pytest.mark.parametrize("index", [i for i, (name, _) in enumerate(GIVEN) if name in ("seed_oss", "ernie4_5")])
def test_what_another_class_computes_too_its_own_computes_alike(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws compare a model with the first class that computes it, which need not be its own."""
    hf_type, settings = GIVEN[index]
    monkeypatch.setattr("tests.laws.parity.FAMILIES", {hf_type: FAMILIES[hf_type]})
    spec = read(hf_type, {**settings, "head_dim": 16})
    found = differences(pair(spec), inputs("left", spec.vocab_size))
    assert max(found.logits, found.hidden, found.gradients) < FLOAT32


@pytest.mark.in_turn
@pytest.mark.parametrize("index", OWN, ids=[f"{GIVEN[i][0]} {i}" for i in OWN])
def test_its_own_class_computes_alike_to_rounding(index: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also after its files, as it writes them, were read."""
    hf_type, settings = GIVEN[index]
    monkeypatch.setattr("tests.laws.parity.FAMILIES", {hf_type: FAMILIES[hf_type]})
    spec = read(hf_type, settings)
    found = in_double(spec, inputs_for("left", spec), tmp_path)
    assert max(found.logits, found.hidden, found.gradients) < rounding(spec)


def test_alpha_is_a_factor_of_theta() -> None:
    """Theta · alpha^(r / (r - 2)), r features of a head turning; the frequencies are the class's."""
    settings = {**SIZES, "head_dim": 16, "rope_theta": 1e4, "rope_scaling": ALPHA}
    found: RotarySpec = first(read("hunyuan_v1_dense", settings), RotarySpec)
    assert found.theta == pytest.approx(1e4 * 1000 ** (16 / 14))
    theirs = transformers.HunYuanDenseV1ForCausalLM(transformers.HunYuanDenseV1Config(**settings))
    assert found.frequencies(16) == pytest.approx(theirs.model.rotary_emb.inv_freq.tolist(), rel=1e-5)


def test_a_released_dbrx_says_theta_inside_a_table() -> None:
    inside = {**DBRX_TABLES, "attn_config": {"kv_n_heads": 2, "rope_theta": 5e5}}
    assert first(read("dbrx", {**DBRX, **inside}), RotarySpec).theta == 5e5


def test_layers_of_exaone_rotate_nothing_where_others_have_windows() -> None:
    hybrid = read("exaone4", SIZES)
    turning = [first(block, GQASpec).rotary is not None for block in hybrid.stack.blocks]
    assert turning == [first(block, SlidingWindow) is not None for block in hybrid.stack.blocks] == [True] * 3 + [False]
    full = read("exaone4", {**SIZES, "sliding_window": None})
    assert all(first(block, GQASpec).rotary for block in full.stack.blocks)
    assert first(full, SlidingWindow) is None


@pytest.mark.parametrize(
    ("hf_type", "changes", "says"),
    [
        (
            "diffllama",
            {"num_key_value_heads": 1},
            "difference is of pairs of heads, and there are 1 of keys and values; take an even",
        ),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not computed here"),
        ("longcat_flash", {**LONGCAT, "zero_expert_type": "copy"}, "zero_expert_type = 'copy' is not computed here"),
        ("longcat_flash", {**LONGCAT, "num_hidden_layers": 2}, "num_hidden_layers = 2 is not computed here; only 4 is"),
        ("longcat_flash", {**LONGCAT, "moe_topk": 7}, "top_k = 7 must be from 1 to n_experts = 4 and n_identity = 2"),
        ("smollm3", {"no_rope_layers": [1, 0]}, r"no_rope_layers = \[1, 0\] must be 4 times 1"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval = 0 must be above 0"),
        ("exaone4", {"sliding_window_pattern": -1}, "sliding_window_pattern = -1 is no number that a model has"),
        ("dots1", {**ROUTED, "layer_types": ["sliding"] * 4}, "layer_types = .* must be 4 times"),
        ("dots1", {"n_shared_experts": 1, "num_experts_per_tok": 2}, "has no setting 'n_routed_experts'"),
        ("minimax_m2", {"num_local_experts": 8, "attn_type_list": [1, 0, 1, 1]}, "attn_type_list = .* is not computed"),
        ("llama4_text", {"moe_layers": [-1]}, r"moe_layers = \[-1\] must be a list of some of the 4 layers"),
        ("llama4_text", {"no_rope_layers": [1, 2, 0, 0]}, "no_rope_layers = .* must be 4 times 1"),
        (
            "llama4_text",
            {"layer_types": ["sliding_attention"] * 4},
            "layer_types = .* must be 4 times chunked_attention",
        ),
        (
            "ernie4_5_moe",
            {**ERNIE, "moe_layer_end_index": "last"},
            "moe_layer_end_index = 'last' must be the number of a layer",
        ),
        ("ernie4_5_moe", {**ERNIE, "use_bias": True}, "use_bias = True is not computed here"),
        ("afmoe", {**EXPERTS, "layer_types": ["sliding_attention"] * 3}, "layer_types = .* must be 4 times"),
        (
            "gemma3n_text",
            {**GEMMA3N, "num_kv_shared_layers": 3},
            "num_kv_shared_layers = 3 leaves no layer of some kind",
        ),
        (
            "gemma3n_text",
            {**GEMMA3N, "intermediate_size": [32]},
            "intermediate_size = .* must be a number above 0, or 4 of them",
        ),
        ("gemma3n_text", {**GEMMA3N, "altup_active_idx": 1}, "altup_active_idx = 1 is not computed here"),
        ("dbrx", {**DBRX, "attn_config": 3}, "attn_config = 3 must be a table"),
        ("stablelm", {"head_dim": 8}, "head_dim = 8 is not computed here; only 16 is"),
        ("helium", {"head_dim": 8}, "head_dim = 8 is not computed here; only 16 is"),
        ("cwm", {"head_dim": 16, "layer_types": ["full"] * 4}, "layer_types = .* must be 4 times"),
        ("solar_open", {**ROUTED, "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not computed here"),
        (
            "deepseek_v32",
            {**LATENT, **ROUTED, "n_group": 2, "topk_group": 1, "index_head_dim": 4},
            "index_head_dim = 4 is less than qk_rope_head_dim = 8",
        ),
        (
            "deepseek_v32",
            {**LATENT, **ROUTED, "n_group": 2, "topk_group": 1, "layer_types": ["full_attention"] * 4},
            "layer_types = .* must be 4 times",
        ),
        (
            "glm_moe_dsa",
            {**LATENT, **ROUTED, "index_topk_pattern": "SFFF"},
            "index_topk_pattern = 'SFFF' must be 4 times full or shared, the first full",
        ),
        ("deepseek_v4", {"num_key_value_heads": 2}, "num_key_value_heads = 2 is not computed here; only 1 is"),
        (
            "deepseek_v4",
            {**V4, "layer_types": ["full_attention"] * 4},
            "layer_types = .* must be 4 times sliding",
        ),
        (
            "deepseek_v4",
            {**V4, "mlp_layer_types": ["moe"]},
            "mlp_layer_types = .* must be 4 times hash_moe or moe",
        ),
        (
            "deepseek_v4",
            {**V4, "compress_ratios": [4, 8, 4, 4]},
            "compress_ratios = .* must be 4 times one of 0, 4, 128",
        ),
        ("deepseek_v4", {**V4, "scoring_func": "softmax"}, "scoring_func = 'softmax' is not computed here"),
        ("deepseek_v4", {**V4, "hc_mult": 1}, "HyperStreams.n = 1 is one stream"),
        ("deepseek_v4", {**V4, "o_groups": 3}, "SharedKV.out_groups = 3 must divide n_heads = 4"),
        ("hy_v3", {**NUMBERED, "mlp_layer_types": ["moe"] * 4}, "mlp_layer_types = .* must be 4 times dense or sparse"),
        ("hy_v3", {**NUMBERED, "mlp_layer_types": ["dense"]}, "mlp_layer_types = .* must be 4 times dense or sparse"),
        ("hy_v3", {**NUMBERED, "mlp_bias": True}, "mlp_bias = True is not computed here"),
        ("exaone_moe", {**NUMBERED, "num_shared_experts": 0}, "num_shared_experts = 0 leaves an expert without width"),
        ("mellum", {**EXPERTS, "num_experts": 4, "num_mtp_layers": 1}, "num_mtp_layers = 1 is not computed here"),
        (
            "axk1",
            {**LATENT, **ROUTED, "n_group": 1, "topk_group": 1, "moe_layer_freq": 2},
            "moe_layer_freq = 2 is not computed",
        ),
        ("axk1", {**LATENT, **ROUTED, "n_group": 3, "topk_group": 1}, "Router.n_groups = 3 must divide n_experts = 4"),
        ("minicpm3", {**LATENT, "scale_depth": 0}, "scale_depth = 0 must be above 0"),
        ("minicpm3", {**LATENT, "num_key_value_heads": 2}, "num_key_value_heads = 2 is not computed here"),
        ("zaya", {**ZAYA, "num_experts_per_tok": 2}, "num_experts_per_tok = 2 is not computed here; only 1 is"),
        ("zaya", {**ZAYA, "attention_bias": True}, "attention_bias = True is not computed here"),
        ("zaya", {**ZAYA, "rope_theta": 77.0}, "rope_theta = 77.0 is not computed here"),
        ("zaya", {**ZAYA, "layer_types": ["hybrid_sliding"] * 4}, "sliding_window = None leaves the sliding layers"),
        ("zaya", {**ZAYA, "layer_types": ["full_attention"] * 4}, "must be 4 times hybrid_sliding or hybrid"),
        ("laguna", {**EXPERTS, **LAGUNA, "gating": ["per-head"]}, "gating = .* must be true or"),
        ("laguna", {**EXPERTS, **LAGUNA, "gating": False}, "gating = False must be true or per-element or per-head"),
        (
            "muse_glimmer_text",
            {**MUSE, "layer_rope_theta": [7.0] * 5},
            "layer_rope_theta = .* is not computed here; only",
        ),
        ("muse_glimmer_text", {**MUSE, "layer_rope_theta": [0]}, r"layer_rope_theta = \[0\] must be 5 numbers"),
        ("muse_glimmer_text", {**MUSE, "sliding_window": 0}, "sliding_window = 0 must be above 0"),
        ("step3p5", {**STEP, "gating": "per-element"}, "gating = 'per-element' is not computed here; only True or"),
        ("glm5_next_text", {**GLM_NEXT, "qk_rope_head_dim": 8}, "qk_rope_head_dim = 8 is not computed here; only 0 is"),
        ("glm5_next_text", {**GLM_NEXT, "index_kpool": 3}, "Indexer.top_k = 8 must be a multiple of every = 3"),
        ("glm5_next_text", {**GLM_NEXT, "index_kpool": 1}, "Indexer.gated = True weighs the keys of a block, and"),
        (
            "glm5_next_text",
            {**GLM_NEXT, "index_kpool_always_select_tail": False},
            "select_tail = False is not computed",
        ),
        ("glm5_next_text", {**GLM_NEXT, "indexer_types": ["shared"] * 4}, "indexer_types = .* must be full of each"),
        ("glm5_next_text", {**GLM_NEXT, "linear_lower_bound": 0.5}, "linear_lower_bound = 0.5 is no bound below 0"),
        ("axk2", {**LATENT, **ROUTED, **INDEXED, "q_lora_rank": 0}, "MLA.query_rank = 0 must be at least 1"),
        (
            "axk2",
            {**LATENT, **ROUTED, **INDEXED, "moe_layer_freq": 2},
            "moe_layer_freq = 2 is not computed here; only 1",
        ),
        ("axk2", {**LATENT, **ROUTED, **INDEXED, "gated_norm_rank": 0}, "gated_norm_rank = 0 must be above 0"),
        ("mistral_large4_text", {**LARGE4, "q_lora_rank": 24}, "q_lora_rank = 24 is not computed here; only None is"),
        (
            "mistral_large4_text",
            {**LARGE4, "no_rope_layers": [0] * 4},
            r"no_rope_layers = .* has no layer that rotates",
        ),
        (
            "mistral_large4_text",
            {**LARGE4, "kv_source_layers": [0, 2, 2, 3]},
            r"kv_source_layers = .* must be 4 numbers",
        ),
        (
            "mistral_large4_text",
            {**LARGE4, "kv_source_layers": [0, 1, 2, 0]},
            "has layer 3 read layer 0, whose are not keys that turn as its own; not computed here",
        ),
        (
            "mistral_large4_text",
            {**LARGE4, "no_rope_layers": [1] * 4, "kv_source_layers": [0, 1, 1, 0]},
            "has layer 3 read layer 0, whose are not the last such keys; not computed here",
        ),
        (
            "mistral_large4_text",
            {**LARGE4, "rope_parameters": STEPS},
            "rope_parameters: llama_4_scaling_beta = 0.3 is unknown here",
        ),
        (
            "mistral_large4_text",
            {**LARGE4, "index_head_dim": 4},
            "index_head_dim = 4 is less than qk_rope_head_dim = 8",
        ),
        ("step3p5", {**STEP, "mlp_bias": True}, "mlp_bias = True is not computed here"),
        ("step3p5", {**STEP, "sliding_window": None}, "sliding_window = None leaves the sliding layers without"),
        ("step3p5", {**STEP, "query_pre_attn_scalar": 9}, "query_pre_attn_scalar = 9 is not computed here; only 8 is"),
        ("step3p5", {**STEP, "swiglu_limits": [1.0]}, "swiglu_limits = .* must be a number, or 4 of them"),
        ("step3p5", {**STEP, "moe_layers_enum": "a", "mlp_layer_types": None}, "moe_layers_enum = 'a' must be numbers"),
        ("step3p5", {**STEP, "rope_parameters": YARN}, "rope_parameters = .* must have a table for each type of layer"),
        ("step3p5", {**STEP, "per_layer_config": {"0": {"num_attention_heads": 2}}}, "per_layer_config = .* says of a"),
        (
            "laguna",
            {**EXPERTS, **LAGUNA, "num_attention_heads_per_layer": [4, 4]},
            r"num_attention_heads_per_layer = \[4, 4\] must be a number above 0, or 4 of them",
        ),
        ("laguna", {**EXPERTS, **LAGUNA, "moe_apply_router_weight_on_input": True}, "is not computed here"),
        ("kolibri1", {**KOLIBRI, "sliding_window": None}, "sliding_window = None is no window, without which this"),
        ("kolibri1", {**KOLIBRI, "attention_bias": True}, "attention_bias = True is unknown here and might change"),
        ("granitemoe_swa", {"layer_rope_theta": [1e4]}, r"layer_rope_theta = \[10000.0\] must be 4 numbers"),
        (
            "cohere2_moe",
            {"expert_selection_fn": "top"},
            "expert_selection_fn = 'top' is not computed here; only 'softmax' or 'sigmoid' is",
        ),
        (
            "cohere2_moe",
            {"shared_expert_combination_strategy": "max"},
            "strategy = 'max' is not computed here; only 'average' or 'sum' is",
        ),
        (
            "cohere2_moe",
            {"rope_scaling": YARN},
            "rope_scaling = .* is passed over by this class; call it rope_parameters",
        ),
        ("cohere2_moe", {"sliding_window": None}, "sliding_window = None is no window, without which this"),
        ("hy_v4", {**LATENT, **ROUTED, **INDEXED, "hc_mult": 1}, "HyperStreams.n = 1 is one stream"),
        ("hy_v4", {**LATENT, **ROUTED, **INDEXED, "hc_eps": 0.0}, "hc_eps = 0.0 must be above 0"),
        (
            "hy_v4",
            {**LATENT, **ROUTED, **INDEXED, "indexer_types": ["shared"] * 4},
            "indexer_types = .* must be 4 times",
        ),
        ("hy_v4", {**LATENT, **ROUTED, **INDEXED, "swiglu_limit": 0.0}, "swiglu_limit = 0.0 must be above 0"),
        ("minimax_m3_vl_text", {**M3, "rotary_dim": 64}, "rotary_dim = 64 is not computed here; only 8 is"),
        ("minimax_m3_vl_text", {**M3, "index_local_blocks": 0}, "index_local_blocks = 0 must be above 0"),
        ("minimax_m3_vl_text", {**M3, "index_local_blocks": 4}, "BlockIndexer.near = 4 must be from 1 to top_k = 3"),
        ("minimax_m3_vl_text", {**M3, "index_n_heads": 3}, "makes 3 choices, which do not divide 4 heads"),
        ("minimax_m3_vl_text", {**M3, "index_head_dim": 6}, "index_head_dim = 6 is less than the 8 features of a head"),
        (
            "minimax_m3_vl_text",
            {**M3, "layer_types": ["conv"] * 4},
            "layer_types = .* must be 4 times full_attention or",
        ),
        ("minimax_m3_vl_text", {**M3, "mlp_layer_types": ["dense"]}, "mlp_layer_types = .* must be 4 times dense or"),
        (
            "minimax_m3_vl_text",
            {**M3, "moe_layer_freq": [2] * 4},
            "moe_layer_freq = .* must be 4 times 1, for a layer that has",
        ),
        *(
            (
                "minimax_m3_vl_text",
                {**M3, "sparse_attention_config": {**OF_M3, name: value}},
                f"{name} = .* is not computed",
            )
            for name, value in (
                ("use_sparse_attention", False),
                ("sparse_init_block", 1),
                ("sparse_score_type", "mean"),
                ("sparse_disable_index_value", [0] * 4),
            )
        ),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, r"moe_topk = \[1, 2\] must be a number above 0, or 4 of them"),
        ("hunyuan_v1_moe", {"num_shared_expert": 2}, "num_shared_expert = 2 is not computed here"),
        ("hunyuan_v1_moe", {"moe_intermediate_size": 16}, "moe_intermediate_size = 16 is not computed here"),
        ("granitemoeshared", {"shared_intermediate_size": -1}, "shared_intermediate_size = -1 is no number"),
        ("flex_olmo", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is unknown here"),
        *(
            (name, {"rope_theta": 77.0}, "rope_theta = 77.0 is not computed here; only")
            for name in ("apertus", "apertus1p5_text", "cwm")
        ),
        *(
            (
                "apertus1p5_text",
                wrong,
                "output_vocab_size = .* must be at most vocab_size = 101, in a table of the head's",
            )
            for wrong in ({"output_vocab_size": 102}, {"output_vocab_size": 60, "tie_word_embeddings": True})
        ),
        (
            "laguna",
            {**EXPERTS, **LAGUNA, "rope_theta": 77.0},
            "rope_theta = 77.0 is not computed here; only 500000.0 is",
        ),
        ("mellum", {**EXPERTS, "num_experts": 4, "rope_theta": 77.0}, "rope_theta = 77.0 is not computed here"),
        ("gemma4_text", {**GEMMA4, "rope_theta": 77.0}, "rope_theta = 77.0 is not computed here; only 1000000.0 is"),
        *(
            (name, {"logits_scaling": 0.0}, "logits_scaling = 0.0 must be above 0")
            for name in ("granite", "granitemoe", "granite_swa", "granitemoe_swa", "granitemoeshared")
        ),
        ("phimoe", {"num_experts_per_tok": 1}, "num_experts_per_tok = 1 is not computed here; only 2 is"),
        *(
            (name, {"head_dim": 16, "rope_parameters": {**TABLES, "full_attention": turning}}, says)
            for name in ("olmo3", "gemma3_text", "modernbert-decoder")
            for turning, says in (
                (
                    {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
                    "full_attention: partial_rotary_factor = 0.5 is not",
                ),
                ({**YARN, "truncate": False}, "full_attention: truncate = False is not computed here; only True is"),
            )
        ),
    ],
)
def test_refused_in_a_line(hf_type: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as error:
        read(hf_type, {**({} if hf_type == "dbrx" else SIZES), **changes})
    assert "\n" not in str(error.value)


def test_files_need_not_hold_what_identities_never_read(tmp_path: Path) -> None:
    """Gates and ups of LongCat-Flash's identities, which its class writes: without them the model is the same."""
    model = build(read("longcat_flash", LONGCAT), seed=3)
    directory = tmp_path / "written"
    save(model, directory)
    held = load_file(directory / "model.safetensors")
    idle = {name for name in held if re.search(r"\.experts\.[45]\.", name)}
    assert len(idle) == 2 * 2 * 2
    assert not any(held[name].any() for name in idle)
    save_file({name: value for name, value in held.items() if name not in idle}, directory / "model.safetensors")
    again = load(directory)[0].state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())
    save_file({name: value for name, value in held.items() if ".3.up" not in name}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts\.3\.up_proj"):
        load(directory)


def test_released_files_of_axk1_have_a_norm_too_many_and_no_corrections(tmp_path: Path) -> None:
    """A dense layer's norm behind experts is passed over; a model without corrections is written and read as one."""
    settings = {**LATENT, **ROUTED, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    model = build(read("axk1", settings), seed=3)
    save(model, tmp_path / "written")
    held = load_file(tmp_path / "written" / "model.safetensors")
    assert sorted(name for name in held if "post_mlp" in name) == [
        f"model.layers.{i}.post_mlp_layernorm.weight" for i in (1, 2, 3)
    ]
    held = {name: value for name, value in held.items() if "correction" not in name}
    more = {"model.layers.0.post_mlp_layernorm.weight": torch.ones(64)}
    save_file(held | more, tmp_path / "written" / "model.safetensors")
    found = load(tmp_path / "written")[0]
    assert not any("correction" in name for name in found.state_dict())
    save(found, tmp_path / "again")
    again = load(tmp_path / "again")[0]
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(found(ids).logits, again(ids).logits)
        assert torch.equal(found(ids).logits, model(ids).logits)  # whose corrections are 0


def test_multipliers_of_minicpm_are_those_that_its_class_makes_of_its_settings() -> None:
    settings = {**LATENT, "scale_depth": 0.7, "dim_model_base": 16}
    theirs = transformers.MiniCPM3ForCausalLM(transformers.MiniCPM3Config(**settings))
    ours = read("minicpm3", settings)
    added = build(ours).stack.residual.spec
    assert added.branch == pytest.approx(theirs.model.layers[0].residual_scale)
    assert ours.heads[0].scale is not None
    assert ours.heads[0].scale.value(64) == pytest.approx(1 / theirs.config.logits_scaling)


@pytest.mark.parametrize(
    ("hf_type", "settings", "names"),
    [
        (
            "exaone",
            SIZES,
            {
                "num_layers": "num_hidden_layers",
                "layer_norm_epsilon": "rms_norm_eps",
                "activation_function": "hidden_act",
            },
        ),
        (
            "internlm3",
            {**SIZES, "attention_bias": True, "mlp_bias": True},
            {"qkv_bias": "attention_bias", "bias": "mlp_bias"},
        ),
        (
            "sarvam_moe",
            {**SIZES, **ROUTED, "attention_bias": True},
            {
                "num_experts": "n_routed_experts",
                "num_shared_experts": "n_shared_experts",
                "use_qkv_bias": "attention_bias",
            },
        ),
        (
            "sarvam_mla",
            {**LATENT, **ROUTED},
            {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
        ),
        ("mpt", MPT, {"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"}),
        (
            "bloom",
            {"vocab_size": 101, "hidden_size": 64, "n_head": 4, "n_layer": 2},
            {"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        ),
        (
            "falcon",
            {"vocab_size": 101, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2},
            {"n_embed": "hidden_size"},
        ),
        (
            "gpt2",
            {"vocab_size": 101, "n_embd": 64, "n_positions": 32, "n_head": 4, "n_layer": 2},
            {
                "hidden_size": "n_embd",
                "max_position_embeddings": "n_positions",
                "num_attention_heads": "n_head",
                "num_hidden_layers": "n_layer",
            },
        ),
    ],
)
def test_settings_by_the_other_names_that_files_have(
    hf_type: str, settings: dict[str, Any], names: dict[str, str]
) -> None:
    """Of both the other one is meant, as the configurations of transformers have it; null is none."""
    known = transformers.AutoConfig.for_model(hf_type, **settings).to_dict()
    known = {name: value for name, value in known.items() if name in (*settings, *names.values())}
    kept = {name: value for name, value in known.items() if name not in names.values()}
    ours = read(hf_type, known)
    assert read(hf_type, kept | {other: known[name] for other, name in names.items()}) == ours
    assert read(hf_type, known | dict.fromkeys(names)) == ours
    wrong = {name: 2 * known[name] for name in names.values() if type(known[name]) is int}
    assert read(hf_type, known | wrong | {other: known[name] for other, name in names.items()}) == ours


def written(spec: ModelSpec, hf_type: str, folder: Path) -> Path:
    """The directory of this class of a model with weights that tell."""
    save(filled(spec, telling(spec)), folder / "ours", form="anyformer")
    convert(folder / "ours", folder / "theirs", hf_type=hf_type)
    return folder / "theirs"


@pytest.mark.parametrize(
    ("hf_type", "settings", "name"),
    [
        ("exaone", SIZES, "transformer.h.0.attn.attention.out_proj.weight"),
        ("sarvam_moe", {**SIZES, **ROUTED}, "model.layers.1.attention.query_key_value.weight"),
        ("sarvam_mla", {**LATENT, **ROUTED}, "model.layers.3.mlp.experts.0.up_proj.weight"),
        ("flint", {**SIZES, **EXPERTS, "num_experts": 4}, "model.layers.3.self_attn.softmax_offset"),
        ("mpt", MPT, "transformer.blocks.1.attn.Wqkv.weight"),
    ],
)
def test_files_have_the_names_of_the_released_ones_which_transformers_reads(
    hf_type: str, settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    spec = read(hf_type, settings)
    model, directory = filled(spec, telling(spec)).eval(), written(spec, hf_type, tmp_path)
    assert name in load_file(directory / "model.safetensors")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert distance(model(ids).logits, theirs(ids).logits) < FLOAT32
        again = load(directory)[0].eval()
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_the_tokens_of_sarvam_by_either_name(tmp_path: Path) -> None:
    """Its released files call the table of tokens as Ling's do."""
    spec = read("sarvam_moe", {**SIZES, **ROUTED})
    directory = written(spec, "sarvam_moe", tmp_path)
    file = directory / "model.safetensors"
    held = load_file(file)
    save_file({name.replace("embed_tokens", "word_embeddings"): value for name, value in held.items()}, file)
    found = load(directory)[0].state_dict()
    assert all(torch.equal(found[name], value) for name, value in telling(spec).items())


def test_biases_that_internlm3_has_in_one_place_alone_are_refused() -> None:
    with pytest.raises(CheckpointError, match="attention_bias = True differs from mlp_bias, which this class refuses"):
        read("internlm3", {**SIZES, "qkv_bias": True})


def test_released_files_of_sarvam_105b_scale_as_deepseek_does_by_a_name_of_their_own() -> None:
    """And say widths of heads that follow from others."""
    settings = {**LATENT, **ROUTED, "max_position_embeddings": 640}
    yarn = {"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16}
    released = {**settings, "rope_scaling": {**yarn, "type": "deepseek_yarn"}, "q_head_dim": 20, "head_dim": 24}
    ours = read("sarvam_mla", released)
    assert ours == read("sarvam_mla", {**settings, "rope_scaling": {**yarn, "type": "yarn"}})
    assert ours == read("sarvam_mla", transformers.AutoConfig.for_model("sarvam_mla", **released).to_dict())
