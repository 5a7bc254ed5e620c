"""Kolibri 1 to and from transformers' Kolibri1ForCausalLM: GLM-4's norms, K-EXAONE's layers, Qwen's settings of experts."""

from __future__ import annotations

from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import SHARED
from anyformer.families.hf.exaone import WINDOWED
from anyformer.families.hf.experts import HELD, expert_width, filed, qwen_routing, routed
from anyformer.families.hf.glm import BEHIND
from anyformer.families.hf.llama import ATTENTION, EPS, NORMS, QK_NORMS, SPARSE_WIDTHS
from anyformer.families.kolibri import kolibri

BEHIND_FILED = {"0.branches.0.norm_out": "post_attn_norm", "1.branches.0.norm_out": "post_ffn_norm"}

KOLIBRI = table.family(
    "kolibri1",
    "Kolibri1ForCausalLM",
    windows.two_kinds(kolibri(5, 8, 1, 8, 1, n_experts=8)),
    (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 512),
        expert_width("shared_expert_intermediate_size", "shared_expert", 512),
        table.heads(n_kv_heads=4, head_dim=128),
        EPS,
        table.positions(context=262_144),
        *qwen_routing(384, 6, sum_is_one=False),
        table.tables(tied=False),
        WINDOWED,
        windows.layer_types(windows.each(5), 513),
    ),
    {**NORMS, **ATTENTION, **QK_NORMS, **SHARED},
    apart=(
        {**BEHIND, **HELD},
        {**BEHIND_FILED, **filed(None), **routed("mlp.gate.weight", "moe.router.expert_bias")},
    ),
    ignored=("intermediate_size",),  # of dense layers, which it has none of
)
