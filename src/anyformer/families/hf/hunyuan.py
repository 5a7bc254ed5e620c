"""Hunyuan's models and HY 3 to and from transformers' HunYuanDenseV1ForCausalLM, HunYuanMoEV1ForCausalLM and HYV3ForCausalLM.

The first two norm heads after they have turned, and their "dynamic" scaling with an alpha is none: it is a factor of theta.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.glm import router
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import LAYER, SHARED, n_shared
from anyformer.families.hf.experts import ALONE, dense_by_type, expert_width, filed, routed
from anyformer.families.hf.layout import gated
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, QK_NORMS, SPARSE_WIDTHS, WIDTHS
from anyformer.families.hf.mapping import one, width_of_head
from anyformer.families.hf.rotary import THETA, rotary, rotary_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.hunyuan import hunyuan, hunyuan_moe, hy_v3
from anyformer.layers import GatedFeedForwardSpec, RotarySpec, RouterSpec
from anyformer.spec import ModelSpec

# What the released scalings say beside alpha, which the class passes over.
UNUSED = ("type", "rope_type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    context = settings.take("max_position_embeddings", int, 2048)
    name = next((n for n in ("rope_scaling", "rope_parameters") if settings.section(n)), "rope_scaling")
    inner = settings.section(name)
    alpha = inner.optional("alpha", float) if inner else None
    if inner is None or not alpha:
        return changed(spec, RotarySpec, **rotary(settings, context, fraction=None).values()).but(context=context)
    inner.require("type", "dynamic")
    inner.require("rope_type", "dynamic")
    inner.ignore(*UNUSED)
    theta = inner.take(THETA, float, settings.take(THETA, float, 10_000.0))
    inner.close()
    r = width_of_head(spec)
    return changed(spec, RotarySpec, theta=theta * alpha ** (r / (r - 2)), scaling=None).but(context=context)


def _write(spec: ModelSpec) -> dict[str, Any]:
    found = rotary_settings(one(spec, RotarySpec), fraction=None)
    return {"max_position_embeddings": spec.context or 2048, **found}


EPS = table.rms_eps(1e-5)
# Ids of tokens, and what the released files say of the classes again.
SAID_AGAIN = (
    *("eod_token_id", "attention_head_dim", "use_qk_norm", "use_cla", "cla_share_factor", "org_vocab_size"),
    *(f"{name}_id" for name in ("pad", "mask_init", "text_start", "text_end", "im_start", "im_end", "im_newline")),
    *("norm_type", "use_rotary_pos_emb", "pool_type", "dense_list"),
)
PAIRS = (
    *WIDTHS,
    table.heads(),
    table.BIASES,
    EPS,
    table.Pair(_read, _write),
    table.tables(tied=False),
    table.layers(),
)
AFTER_TURNING = {
    **NORMS,
    **ATTENTION,
    f"{table.PROJECTION}.norm_query": "self_attn.query_layernorm",
    f"{table.PROJECTION}.norm_key": "self_attn.key_layernorm",
}
HUNYUAN = table.family(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    hunyuan(1, 8, 1, 8),
    PAIRS,
    {**AFTER_TURNING, **GATED},
    ignored=SAID_AGAIN,
)


def _chosen(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """How many experts a token of each layer has: a number for all, or one for each."""
    each = settings.by_layer("moe_topk", int, spec.n_layers, 1)
    blocks = (changed(block, RouterSpec, top_k=k) for block, k in zip(spec.stack.blocks, each, strict=True))
    return with_layers(spec, blocks)


def _choices(spec: ModelSpec) -> dict[str, Any]:
    each = [one(block, RouterSpec).top_k for block in spec.stack.blocks]
    return {"moe_topk": each[0] if len({*each}) == 1 else each}


def _widths(spec: ModelSpec) -> tuple[int, list[int]]:
    width = one(spec, GatedFeedForwardSpec).d_ff
    return width, [width] * spec.n_layers


BESIDE = gated(f"{table.FEED}.shared_expert", "mlp.shared_mlp")
HUNYUAN_MOE = table.family(
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    hunyuan_moe(1, 8, 1, 8, n_experts=64, top_k=1),
    (
        *PAIRS,
        table.at("num_experts", int, RouterSpec, "n_experts", default=1),
        table.Pair(_chosen, _choices),
        # What the released files say of their experts again.
        table.only(moe_intermediate_size=_widths, num_shared_expert=lambda spec: (1, [1] * spec.n_layers)),
        table.only(use_mixed_mlp_moe=True, norm_topk_prob=True, routed_scaling_factor=1.0),
    ),
    {**AFTER_TURNING, **BESIDE},
    apart=({**ALONE, f"{table.FEED}.router": "mlp.gate.wg"}, filed("mlp.gate.wg")),
    ignored=SAID_AGAIN,
)


SHARED_FILED = {ours: theirs.replace("shared_experts", "shared_mlp") for ours, theirs in SHARED.items()}
ROUTING = {
    "num_experts": ("n_experts", int, 192),
    "num_experts_per_tok": ("top_k", int, 8),
    "router_scaling_factor": ("factor", float, 2.826),
}
HY_V3 = table.family(
    "hy_v3",
    "HYV3ForCausalLM",
    hy_v3(1, 8, 1, 8, 1, d_expert=8, choice=router(2, 1, 1.0), n_dense=0),
    (
        *SPARSE_WIDTHS,
        expert_width("moe_intermediate_size", "expert", 1536),
        n_shared(1, "num_shared_experts"),
        table.heads(n_kv_heads=8, head_dim=128),
        table.BIASES,
        table.only(mlp_bias=False),
        EPS,
        table.positions(RotarySpec(theta=11_158_840.0), context=131_072),
        table.together(RouterSpec, ROUTING),
        table.tables(tied=False, start=0.006),
        table.layers(),
        dense_by_type(13_312, 1),
    ),
    {**ATTENTION, **QK_NORMS, **LAYER},
    apart=(
        {**ALONE, **routed("mlp.gate.weight", "mlp.e_score_correction_bias")},
        {**SHARED_FILED, **filed(None), **routed("mlp.router.gate.weight", "mlp.expert_bias")},
    ),
    ignored=("enable_moe_fp32_combine",),
)
