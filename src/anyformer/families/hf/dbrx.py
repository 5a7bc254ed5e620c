"""DBRX to and from transformers' DbrxForCausalLM: settings in two tables, all experts one matrix.

The class takes theta from outside the table in which the released files say it, and asks for the other all the same: what is
said outside goes before what is said inside, and both are written.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.dbrx import dbrx
from anyformer.families.hf import table
from anyformer.families.hf.experts import EXPERTS
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import THETA, rotary, rotary_settings
from anyformer.families.hf.settings import Settings, spelling
from anyformer.layers import GatedFeedForwardSpec, GQASpec, RotarySpec, RouterSpec
from anyformer.spec import Count, ModelSpec, StackSpec, Width


def _read_attention(settings: Settings, spec: ModelSpec) -> ModelSpec:
    inner, n_heads = settings.inner("attn_config"), settings.take("n_heads", int, 16)
    kv_heads, clip = inner.take("kv_n_heads", int, 1), inner.optional("clip_qkv", float)
    plain = RotarySpec(theta=inner.take(THETA, float, 10_000.0))
    inner.close()
    context = settings.take("max_seq_len", int, 2048)
    settings.require("num_key_value_heads", kv_heads)
    found = rotary(settings, context, plain=plain, fraction=None)
    spec = changed(spec, GQASpec, n_heads=Count(n_heads), n_kv_heads=Count(kv_heads), clip=clip)
    return changed(spec, RotarySpec, **found.values()).but(context=context)


def _write_attention(spec: ModelSpec) -> dict[str, Any]:
    heads, found = one(spec, GQASpec), one(spec, RotarySpec)
    inner = {"kv_n_heads": heads.kv_heads, "clip_qkv": heads.clip, THETA: found.theta}
    sizes = {"n_heads": heads.n_heads, "max_seq_len": spec.context or 2048}
    return {**sizes, "attn_config": inner, **rotary_settings(found, fraction=None)}


def _read_experts(settings: Settings, spec: ModelSpec) -> ModelSpec:
    inner = settings.inner("ffn_config")
    inner.ignore("hidden_size", "moe_jitter_eps", "moe_loss_weight")  # d_model again; those of training
    inner.require("moe_normalize_expert_weights", 1, 1.0)
    normed = inner.nullable("moe_normalize_expert_weights", float, 1.0) is not None
    n, k = inner.take("moe_num_experts", int, 4), inner.take("moe_top_k", int, 1)
    width, activation = inner.take("ffn_hidden_size", int, 3584), inner.inner("ffn_act_fn").activation("name", "silu")
    inner.close()
    spec = changed(spec, RouterSpec, n_experts=Count(n), top_k=k, renormalise=normed)
    return changed(spec, GatedFeedForwardSpec, d_ff=Width(width), activation=activation)


def _write_experts(spec: ModelSpec) -> dict[str, Any]:
    router, expert = one(spec, RouterSpec), one(spec, GatedFeedForwardSpec)
    found = {
        "moe_num_experts": router.n_experts,
        "moe_top_k": router.top_k,
        "moe_normalize_expert_weights": 1.0 if router.renormalise else None,
        "ffn_hidden_size": expert.d_ff,
        "ffn_act_fn": {"name": spelling(expert.activation) or "silu"},
    }
    return {"ffn_config": found}


HELD = {
    f"{EXPERTS}.gate.weight": Theirs("ffn.experts.mlp.w1", by="expert"),
    f"{EXPERTS}.up.weight": Theirs("ffn.experts.mlp.v1", by="expert"),
    f"{EXPERTS}.down.weight": Theirs("ffn.experts.mlp.w2", by="expert", turned=True),
}
DBRX = table.family(
    "dbrx",
    "DbrxForCausalLM",
    dbrx(1, 8, 1, 8),
    (
        table.VOCABULARY,
        table.at("d_model", int, StackSpec, "d_model", default=2048),
        table.Pair(_read_attention, _write_attention),
        table.EVEN,
        table.Pair(_read_experts, _write_experts),
        table.tables(tied=False),
        table.layers("n_layers"),
    ),
    {
        **{f"{i}.norm_in": f"norm_attn_norm.norm_{i + 1}" for i in (0, 1)},
        table.QKV: "norm_attn_norm.attn.Wqkv",
        f"{table.PROJECTION}.o": "norm_attn_norm.attn.out_proj",
        f"{table.FEED}.router": "ffn.router.layer",
        **HELD,
    },
    stack="transformer",
    layer="blocks",
    tokens="wte",
    norm="norm_f",
)
