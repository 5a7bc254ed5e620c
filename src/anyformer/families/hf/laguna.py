"""Laguna to and from transformers' LagunaForCausalLM: each layer has its type, its experts or none, and its number of heads."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, windowed, with_layers
from anyformer.families.glm import router
from anyformer.families.hf import table, windows
from anyformer.families.hf.deepseek import LAYER, SHARED
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width, filed, routed
from anyformer.families.hf.llama import ATTENTION, EPS, QK_NORMS, SPARSE_WIDTHS
from anyformer.families.hf.mapping import one, width_of_head
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.windows import rotary_by_type
from anyformer.families.laguna import GATE, laguna
from anyformer.layers import AttentionSpec, GQASpec, RotarySpec, RouterSpec
from anyformer.spec import Count, ModelSpec, Width

HEADS = "num_attention_heads_per_layer"
WORDS = {"features": "per-element", "heads": "per-head"}
BY = {word: GATE.but(over=over) for over, word in WORDS.items()}
FULL = laguna(1, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0), n_dense=0)
(NEAR,) = windowed(FULL, 512).stack.blocks
TEMPLATE = with_layers(FULL, (NEAR, *FULL.stack.blocks))
ROUTING = {
    "num_experts": ("n_experts", int, 256),
    "num_experts_per_tok": ("top_k", int, 8),
    "moe_routed_scaling_factor": ("factor", float, 1.0),
}


def _heads(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """As many heads of queries in each layer as is said; those of keys and values, and their width, are all layers'."""
    usual = one(spec, GQASpec)
    said = settings.by_layer(HEADS, int, spec.n_layers, usual.n_heads)
    alike = {"n_kv_heads": usual.kv_heads, "head_dim": Width(width_of_head(spec))}
    each = zip(spec.stack.blocks, said, strict=True)
    blocks = (changed(block, GQASpec, n_heads=Count(heads), **alike) for block, heads in each)
    return with_layers(spec, blocks)


def _said(spec: ModelSpec) -> dict[str, Any]:
    return {HEADS: [one(block, GQASpec).n_heads for block in spec.stack.blocks]}


def _gates(settings: Settings, spec: ModelSpec) -> ModelSpec:
    said = settings.written("gating")
    word = "per-head" if said in (None, True) else said
    if not isinstance(word, str) or word not in BY:
        raise settings.refusal("gating", f"must be true or {' or '.join(BY)}")
    return changed(spec, AttentionSpec, gate=BY[word])


def _gating(spec: ModelSpec) -> dict[str, Any]:
    gate = one(spec, AttentionSpec).gate
    return {"gating": WORDS["heads" if gate is None else gate.over]}


CAP = table.at(
    "moe_router_logit_softcapping",
    float,
    RouterSpec,
    "softcap",
    default=0.0,
    into=lambda cap: cap or None,
    out=lambda cap: cap or 0.0,
)
SHARED_FILED = {ours: theirs.replace("shared_experts", "shared_expert") for ours, theirs in SHARED.items()}
LAGUNA = table.family(
    "laguna",
    "LagunaForCausalLM",
    TEMPLATE,
    (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 512),
        expert_width("shared_expert_intermediate_size", "shared_expert", 512),
        table.heads(n_kv_heads=8, head_dim=128),
        table.BIASES,
        EPS,
        rotary_by_type(RotarySpec(), RotarySpec(theta=500_000.0, fraction=0.5), 131_072),
        table.only(rope_theta=500_000.0),  # what the class takes where no tables are said
        table.together(RouterSpec, ROUTING),
        CAP,
        table.Pair(_gates, _gating),
        table.tables(tied=False),
        windows.layer_types(windows.each(1), 512),
        table.Pair(_heads, _said),
        dense_by_type(8192, 1),
        table.only(moe_apply_router_weight_on_input=False),
    ),
    {**ATTENTION, **QK_NORMS, **LAYER, f"{table.MIXER}.gate": "self_attn.g_proj"},
    apart=(
        HELD,
        {**SHARED_FILED, **filed(None), **routed("mlp.gate.weight", "mlp.experts.e_score_correction_bias")},
    ),
)
