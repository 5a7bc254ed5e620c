"""Hunyuan's dense models to and from transformers' HunYuanDenseV1ForCausalLM: norms of heads after they have turned.

Its "dynamic" scaling with an alpha is none: it is a factor of theta.
"""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import THETA, rotary, rotary_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.hunyuan import hunyuan
from anyformer.layers import GQASpec, RMSNormSpec, RotarySpec
from anyformer.spec import ModelSpec

# What the released scalings say beside alpha, which the class passes over.
UNUSED = ("type", "rope_type", "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def _read(settings: Settings, spec: ModelSpec) -> ModelSpec:
    context = settings.take("max_position_embeddings", int, 2048)
    heads = one(spec, GQASpec, "attention")
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
    r = heads.head_dim or spec.stack.d_model // heads.n_heads
    return changed(spec, RotarySpec, theta=theta * alpha ** (r / (r - 2)), scaling=None).but(context=context)


def _write(spec: ModelSpec) -> dict[str, Any]:
    found = rotary_settings(one(spec, RotarySpec, "rotary positions"), fraction=None)
    return {"max_position_embeddings": spec.context or 2048, **found}


HUNYUAN = table.family(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    hunyuan(1, 8, 1, 8),
    (
        *WIDTHS,
        table.heads(),
        table.BIASES,
        table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.Pair(_read, _write),
        table.tables(tied=False),
        table.layers(),
    ),
    {
        **NORMS,
        **ATTENTION,
        **GATED,
        f"{table.PROJECTION}.norm_query": "self_attn.query_layernorm",
        f"{table.PROJECTION}.norm_key": "self_attn.key_layernorm",
    },
    # Ids of tokens, and what the released files say of the class again.
    ignored=("eod_token_id", "attention_head_dim", "use_qk_norm", "use_cla", "cla_share_factor", "org_vocab_size"),
)
