"""GLM-4, 4.5, 4.7-Flash, Solar Open and Sarvam 30B to and from transformers' GlmForCausalLM, Glm4ForCausalLM,
Glm4MoeForCausalLM, Glm4MoeLiteForCausalLM and SolarOpenForCausalLM.

The mixtures' layers for further tokens stand in the released files as DeepSeek-V3's do, and the class passes over them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.glm import glm, glm4, glm4_moe, glm4_moe_lite, router
from anyformer.families.hf import table
from anyformer.families.hf.cohere import norms_of_heads
from anyformer.families.hf.deepseek import (
    AHEAD,
    LAYER,
    LAYOUT,
    SARVAM,
    further,
    latent_heads,
    latent_scale,
    layer,
    layer_eps,
    n_shared,
    v3_routing,
)
from anyformer.families.hf.experts import BY_EXPERT, HELD, dense_by_type, dense_first, expert_width, filed, routed
from anyformer.families.hf.llama import ATTENTION, NORMS, QK_NORMS, SPARSE_WIDTHS, WIDTHS
from anyformer.families.hf.mapping import Family
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.solar import solar_open
from anyformer.layers import GQASpec, RotarySpec

HALF = RotarySpec(fraction=0.5)
PAIRS = (
    *WIDTHS,
    table.heads(n_kv_heads=2, head_dim=128),
    table.at("attention_bias", bool, GQASpec, *table.QKV_BIASES, default=True),
    table.rms_eps(1.5625e-07),
    table.positions(HALF.but(layout="interleaved"), fraction=FRACTION, context=131_072),
    table.tables(tied=False),
    table.layers(),
)
FUSED = {
    **ATTENTION,
    (f"{table.FEED}.gate", f"{table.FEED}.up"): "mlp.gate_up_proj",
    f"{table.FEED}.down": "mlp.down_proj",
}
BEHIND = {"0.branches.0.norm_out": "post_self_attn_layernorm", "1.branches.0.norm_out": "post_mlp_layernorm"}

GLM = table.family("glm", "GlmForCausalLM", glm(1, 8, 1, 8, 1), PAIRS, {**NORMS, **FUSED})
GLM4 = table.family("glm4", "Glm4ForCausalLM", glm4(1, 8, 1, 8, 1), PAIRS, {**NORMS, **BEHIND, **FUSED})


def _glm4_moe(
    hf_type: str,
    heads: table.Pair,
    routing: table.Pair,
    in_files: Mapping[Any, Any],
    *,
    d_expert: int,
    eps: float,
    turning: RotarySpec,
    normed: bool = False,
    n_further: int = 0,
    start: float = 0.02,
    tokens_too: str | None = None,
    first: tuple[table.Pair, ...] = (),
) -> Family:
    """The family of a model whose class is GLM-4.5's, of what it takes where nothing is said, and of its files' names."""
    return table.family(
        hf_type,
        "Glm4MoeForCausalLM",
        glm4_moe(1, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0), n_dense=0),
        (
            *first,
            *WIDTHS,
            expert_width("moe_intermediate_size", "expert", d_expert),
            n_shared(1),
            heads,
            table.at("attention_bias", bool, GQASpec, *table.QKV_BIASES, default=False),
            norms_of_heads("use_qk_norm", normed),
            table.rms_eps(eps),
            table.positions(turning, fraction=FRACTION, context=131_072),
            routing,
            table.tables(tied=False, start=start),
            table.layers(),
            dense_first(1),
            further(n_further),
        ),
        LAYER,
        tokens_too=tokens_too,
        apart=({**ATTENTION, **QK_NORMS, **HELD}, in_files),
        ahead=AHEAD,
    )


GLM4_MOE = _glm4_moe(
    "glm4_moe",
    table.heads(n_kv_heads=8),
    v3_routing(128, 8, 1.0, 1, 1),
    {**ATTENTION, **QK_NORMS, **filed()},
    d_expert=1408,
    eps=1e-5,
    turning=HALF,
    n_further=1,
)
SARVAM_MOE = _glm4_moe(
    "sarvam_moe",
    table.heads(n_kv_heads=4, head_dim=64),
    v3_routing(128, 6, 2.5, 1, 1),
    {
        table.QKV: "attention.query_key_value",
        f"{table.PROJECTION}.o": "attention.dense",
        f"{table.PROJECTION}.norm_query": "attention.query_layernorm",
        f"{table.PROJECTION}.norm_key": "attention.key_layernorm",
        **filed(None),
        **routed("mlp.gate.weight", "mlp.gate.expert_bias"),
    },
    d_expert=1024,
    eps=1e-6,
    turning=RotarySpec(theta=8e6),
    normed=True,
    start=0.006,
    tokens_too="word_embeddings",
    first=(SARVAM, table.renamed(use_qkv_bias="attention_bias")),
)
GLM4_MOE_LITE = table.family(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    glm4_moe_lite(1, 8, 1, 8, d_expert=8, choice=router(2, 1, 1.0), n_dense=0),
    (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1536),
        n_shared(1),
        *latent_heads(query_rank=768, head_dim=192, value_dim=256),
        layer_eps(1e-5),
        table.positions(RotarySpec(layout="interleaved"), context=202_752),
        v3_routing(64, 4, 1.8, 1, 1),
        LAYOUT,
        latent_scale(),
        table.tables(tied=False),
        table.layers(),
        dense_by_type(10_240, 1),
        further(0),
    ),
    layer,
    apart=BY_EXPERT,
    ahead=AHEAD,
)
SOLAR_OPEN = table.family(
    "solar_open",
    "SolarOpenForCausalLM",
    solar_open(1, 8, 1, 8, choice=router(2, 1, 1.0)),
    (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1280),
        n_shared(1),
        table.heads(n_kv_heads=8, head_dim=128),
        table.at("attention_bias", bool, GQASpec, *table.QKV_BIASES, default=False),
        table.rms_eps(1e-5),
        table.positions(RotarySpec(theta=1e6), context=131_072),  # the class fails where a part of a head rotates
        v3_routing(128, 8, 1.0, 1, 1),
        table.tables(tied=False),
        table.layers(),
    ),
    {**ATTENTION, **LAYER},
    apart=BY_EXPERT,
    ignored=("intermediate_size",),  # of dense layers, which it has none of
)
