"""Flint to and from transformers' FlintForCausalLM, whose files call its sinks otherwise."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.flint import WINDOW, flint, sees_all
from anyformer.families.hf import table, windows
from anyformer.families.hf.experts import HELD, SHARED, dense_ones, expert_width, filed, qwen_routing
from anyformer.families.hf.llama import ATTENTION, EPS, GATED, NORMS, QK_NORMS, SWIGLU
from anyformer.layers import GQASpec, RotarySpec

LAYER = {**NORMS, **ATTENTION, **QK_NORMS, **GATED, **SHARED}
TEMPLATE = flint(1, 8, 1, 8, 1, d_expert=8, d_shared=8, n_experts=256, top_k=1, n_dense=0)
SINK = f"{table.MIXER}.sink"
FLINT = table.family(
    "flint",
    "FlintForCausalLM",
    changed(TEMPLATE, GQASpec, rotary=RotarySpec()),
    (
        *table.STREAM,
        table.heads(n_kv_heads=4, head_dim=128),
        table.BIASES,
        SWIGLU,
        EPS,
        table.positions(context=262_144),
        *qwen_routing(256, 6, sum_is_one=True),
        expert_width("moe_intermediate_size", "expert", 512),
        expert_width("shared_expert_intermediate_size", "shared_expert", 1024),
        table.tables(tied=False),
        dense_ones(6144, (0, 1)),
        windows.turning_windows(lambda settings, n: [sees_all(i, n) for i in range(n)], WINDOW),
    ),
    LAYER,
    apart=({**HELD, SINK: "self_attn.sinks"}, {**filed(), SINK: "self_attn.softmax_offset"}),
)
