"""Phi-3.5-MoE to and from transformers' PhimoeForCausalLM; its LongRoPE keeps the short factors at every length there."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.experts import gated_experts
from anyformer.families.hf.llama import ATTENTION, D_FF, NORMS, SWIGLU
from anyformer.families.hf.mixtral import TOP_K, TRAINING
from anyformer.families.phi_moe import phi_moe
from anyformer.layers import LayerNormSpec, RotarySpec, RouterSpec
from anyformer.spec import HeadSpec

TEMPLATE = phi_moe(n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, d_ff=8, top_k=1)

PHI_MOE = table.family(
    "phimoe",
    "PhimoeForCausalLM",
    TEMPLATE,
    (
        table.VOCABULARY,
        table.D_MODEL,
        D_FF,
        table.heads(n_kv_heads=8),
        table.BIASES,
        SWIGLU,
        table.at("rms_norm_eps", float, LayerNormSpec, "eps", default=1e-5),
        table.positions(RotarySpec(theta=1_000_000.0), context=131_072, magnitudes=True),
        table.window(None),
        table.at("num_local_experts", int, RouterSpec, "n_experts", default=16),
        TOP_K,
        table.at("router_jitter_noise", float, RouterSpec, "tolerance", default=0.01),
        table.at("lm_head_bias", bool, HeadSpec, "bias", default=False),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION},
    experts=gated_experts(
        "mlp.router", "mlp.experts", "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")
    ),
    ignored=(*TRAINING, "input_jitter_noise"),
)
