"""A.X K2 to and from transformers' AXK2ForCausalLM: DeepSeek-V3.2's with a gate beside the queries, and gated norms.

Released files call the map to both as DeepSeek-V3's to queries, and a norm's gate by names of its own.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.axk2 import axk2, gated_norms
from anyformer.families.compose import changed
from anyformer.families.deepseek import V3_ROUTER
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import (
    LAYER,
    latent_heads,
    latent_scale,
    layer_eps,
    modules,
    n_shared,
    v3_routing,
)
from anyformer.families.hf.dsa import index_sizes, indexer
from anyformer.families.hf.experts import BY_EXPERT, dense_by_type, expert_width, sparse
from anyformer.families.hf.layout import Laid, Theirs
from anyformer.families.hf.llama import SPARSE_WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.layers import GatedRMSNormSpec, RMSNormSpec, RotarySpec
from anyformer.spec import ModelSpec, SublayerSpec

FIRST, SECOND = "0.norm_in", "1.norm_in"


def _normed(settings: Settings, spec: ModelSpec) -> ModelSpec:
    return gated_norms(spec, settings.positive("gated_norm_rank", int, 16))


def _said(spec: ModelSpec) -> dict[str, Any]:
    return {"gated_norm_rank": one(spec, GatedRMSNormSpec).rank}


def _gated(ours: str, theirs: str) -> Laid:
    """The modules of a gated norm."""
    maps = {"down": ("mlp.fc1", "W_down"), "up": ("mlp.fc2", "W_up")}
    gate = {f"{ours}.{x}": Theirs(f"{theirs}.{name}", also=(f"{theirs}.{file}",)) for x, (name, file) in maps.items()}
    return {f"{ours}.norm": Theirs(f"{theirs}.norm"), **gate}


def _around(spec: ModelSpec) -> Laid:
    """Each layer's second norm, gated before experts."""
    found: Laid = {}
    for i, block in enumerate(spec.stack.blocks):
        ours, theirs = f"stack.blocks.{i}.sublayers.{SECOND}", f"layers.{i}.post_attention_layernorm"
        found |= _gated(ours, theirs) if sparse(block) else {ours: Theirs(theirs)}
    return found


def _layer(spec: ModelSpec) -> dict[Any, Any]:
    query = f"{table.PROJECTION}.q"
    latent = {ours: theirs for ours, theirs in {**modules(spec), **LAYER}.items() if ours not in (query, FIRST, SECOND)}
    both = Theirs("self_attn.q_gate_proj", by="head", also=("self_attn.q_b_proj",))
    return {**latent, (query, f"{table.MIXER}.gate"): both, **_gated(FIRST, "input_layernorm"), **indexer()}


AXK2 = table.family(
    "axk2",
    "AXK2ForCausalLM",
    # until it is known which norms are gated
    changed(axk2(1, 8, 1, 8, d_expert=8, choice=V3_ROUTER, n_dense=0), SublayerSpec, norm_in=RMSNormSpec(eps=1e-6)),
    (
        table.renamed(num_local_experts="n_routed_experts"),
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 512),
        n_shared(1),
        *latent_heads(128, 384, 64, 64, rotary_dim=32, narrow=True),
        layer_eps(),
        table.positions(RotarySpec(layout="interleaved"), context=131_072),
        v3_routing(128, 8, 2.5, 1, 1),
        latent_scale(),
        table.tables(tied=False),
        table.layers(),
        dense_by_type(5120, 1, "first_k_dense_replace"),
        *index_sizes(16),
        table.Pair(_normed, _said),
        table.only(moe_layer_freq=1, rope_interleave=True, scoring_func="sigmoid", topk_method="noaux_tc"),
    ),
    _layer,
    outside=_around,
    apart=BY_EXPERT,
)
