"""Qwen 3, its mixtures and Mellum 2 to and from transformers' Qwen3ForCausalLM, Qwen3MoeForCausalLM and MellumForCausalLM.

Those are Qwen 2's with norms of queries and keys, and with biases by a switch; the mixtures have no shared expert. In Mellum's a
layer's type says its window and its theta.
"""

from __future__ import annotations

from anyformer.families.compose import layered, windowed
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import (
    ALONE,
    BY_EXPERT,
    HELD,
    UNWINDOWED,
    dense_by_type,
    dense_ones,
    expert_width,
    qwen_routing,
)
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, QK_NORMS, SPARSE_WIDTHS, WIDTHS
from anyformer.families.hf.qwen2 import WINDOWS
from anyformer.families.hf.windows import rotary_by_type
from anyformer.families.mellum import mellum
from anyformer.families.qwen3 import qwen3, qwen3_moe
from anyformer.layers import RotarySpec

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
        *WINDOWS,
    ),
    LAYER,
)
QWEN3_MOE = table.family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    qwen3_moe(1, 8, 1, 8, n_experts=64),
    (
        *SPARSE_WIDTHS,
        table.heads(n_kv_heads=4),
        table.BIASES,
        EPS,
        table.positions(context=32_768),
        UNWINDOWED,
        *qwen_routing(128, 8, sum_is_one=False),
        expert_width("moe_intermediate_size", "expert", 768),
        table.tables(tied=False),
        dense_ones(6144),
    ),
    LAYER,
    apart=BY_EXPERT,
    released={
        **LAYER,
        **HELD,
        **{ours: Theirs(theirs, turned=True) for ours, theirs in ALONE.items()},
    },  # of Qwen3-VL's
)
MELLUM = table.family(
    "mellum",
    "MellumForCausalLM",
    windows.two_kinds(mellum(4, 8, 1, 8, 1, n_experts=64)),
    (
        *SPARSE_WIDTHS,
        table.heads(n_kv_heads=4, head_dim=128),
        table.BIASES,
        EPS,
        rotary_by_type(RotarySpec(), RotarySpec(theta=5e5), 131_072),
        table.only(rope_theta=5e5),  # what the class takes where no tables are said
        *qwen_routing(64, 8, sum_is_one=True),
        expert_width("moe_intermediate_size", "expert", 896),
        table.tables(tied=False),
        windows.layer_types(windows.each(1), 1024),
        dense_by_type(7168, 0),
        table.only(num_mtp_layers=0, num_nextn_predict_layers=0),
    ),
    LAYER,
    apart=BY_EXPERT,
)
