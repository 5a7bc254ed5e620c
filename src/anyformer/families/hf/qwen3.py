"""Qwen 3 and its mixtures to and from transformers' Qwen3ForCausalLM and Qwen3MoeForCausalLM.

Those are Qwen 2's with norms of queries and keys, and with biases by a switch; the mixtures have no shared expert.
"""

from __future__ import annotations

from anyformer.families.compose import layered, windowed
from anyformer.families.hf import table
from anyformer.families.hf.experts import HELD, TRAINING, UNWINDOWED, dense_ones, expert_width, filed, n_experts
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, QK_NORMS, SWIGLU, WIDTHS
from anyformer.families.hf.qwen2 import WINDOWS
from anyformer.families.qwen3 import qwen3, qwen3_moe
from anyformer.layers import RouterSpec

PLAIN = qwen3(2, 8, 1, 8)
LAYER = {**NORMS, **ATTENTION, **QK_NORMS, **GATED}

QWEN3 = table.family(
    "qwen3",
    "Qwen3ForCausalLM",
    layered(PLAIN, windowed(PLAIN, 1).stack.blocks[0], PLAIN.stack.blocks[0]),
    (
        *WIDTHS,
        table.heads(n_kv_heads=32, head_dim=128),
        table.BIASES,
        EPS,
        table.positions(context=32_768),
        table.tables(tied=False),
        WINDOWS,
    ),
    LAYER,
)
QWEN3_MOE = table.family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    qwen3_moe(1, 8, 1, 8, n_experts=64, top_k=1),
    (
        table.VOCABULARY,
        table.D_MODEL,
        SWIGLU,
        table.heads(n_kv_heads=4),
        table.BIASES,
        EPS,
        table.positions(context=32_768),
        UNWINDOWED,
        n_experts(128),
        table.at("num_experts_per_tok", int, RouterSpec, "top_k", default=8),
        table.at("norm_topk_prob", bool, RouterSpec, "renormalise", default=False),
        expert_width("moe_intermediate_size", "expert", 768),
        table.tables(tied=False),
        dense_ones(6144),
    ),
    {**LAYER, **HELD},
    filed={**LAYER, **filed()},
    ignored=TRAINING,
)
