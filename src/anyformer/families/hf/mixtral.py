"""Mixtral to and from transformers' MixtralForCausalLM."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.experts import gated_experts
from anyformer.families.hf.llama import ATTENTION, D_FF, NORMS, SWIGLU
from anyformer.families.mixtral import mixtral
from anyformer.layers import RMSNormSpec, RotarySpec, RouterSpec

TEMPLATE = mixtral(n_layers=1, d_model=8, n_heads=1, n_kv_heads=1, d_ff=8, top_k=1)
TRAINING = ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
TOP_K = table.at("num_experts_per_tok", int, RouterSpec, "top_k", default=2)

MIXTRAL = table.family(
    "mixtral",
    "MixtralForCausalLM",
    TEMPLATE,
    (
        table.VOCABULARY,
        table.D_MODEL,
        D_FF,
        table.heads(n_kv_heads=8),
        SWIGLU,
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.positions(RotarySpec(theta=1_000_000.0), context=131_072),
        table.window(None),
        table.at("num_local_experts", int, RouterSpec, "n_experts", default=8),
        TOP_K,
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION},
    experts=gated_experts(
        "mlp.gate", "mlp.experts", "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")
    ),
    ignored=TRAINING,
)
