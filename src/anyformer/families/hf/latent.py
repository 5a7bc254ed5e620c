"""Latent attention in configurations and tensors of Hugging Face, as its classes for DeepSeek-V2 and V3 have it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.deepseek import sharpened
from anyformer.families.hf.layout import Link, link, rows_of
from anyformer.families.hf.mapping import TensorRow, one
from anyformer.families.hf.rotary import scaling_settings
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import PROJECTION, Pair
from anyformer.layers import AttentionSpec, MLASpec, RMSNormSpec, RotarySpec, YaRN
from anyformer.spec import ModelSpec, ScaleSpec

LATENT = "latent attention"


def latent_heads() -> Pair:
    """The sizes of latent attention; there are as many heads of keys and values as of queries."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        n_heads = settings.take("num_attention_heads", int)
        settings.require("num_key_value_heads", n_heads)
        settings.ignore("head_dim", "qk_head_dim")  # the classes write qk_rope_head_dim and the sum there themselves
        bias = settings.take("attention_bias", bool, False)
        return changed(
            spec,
            MLASpec,
            n_heads=n_heads,
            kv_rank=settings.take("kv_lora_rank", int, 512),
            query_rank=settings.nullable("q_lora_rank", int, 1536),
            head_dim=settings.take("qk_nope_head_dim", int, 128),
            rotary_dim=settings.take("qk_rope_head_dim", int, 64),
            value_dim=settings.take("v_head_dim", int, 128),
            bias_down=bias,
            bias_output=bias,
        )

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = one(spec, MLASpec, LATENT)
        return {
            "num_attention_heads": found.n_heads,
            "num_key_value_heads": found.n_heads,
            "kv_lora_rank": found.kv_rank,
            "q_lora_rank": found.query_rank,
            "qk_nope_head_dim": found.head_dim,
            "qk_rope_head_dim": found.turning,
            "v_head_dim": found.value_width,
            "attention_bias": found.bias_output,
        }

    return Pair(read, write)


def layer_eps() -> Pair:
    """The eps of the layers' norms; those of the latents have 1e-6 whatever is said."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        latent = one(spec, MLASpec, LATENT)
        spec = changed(spec, RMSNormSpec, eps=settings.take("rms_norm_eps", float, 1e-6))
        return changed(spec, MLASpec, norm_kv=latent.norm_kv, norm_query=latent.norm_query)

    def write(spec: ModelSpec) -> dict[str, Any]:
        norm = spec.stack.norm
        return {"rms_norm_eps": norm.eps if isinstance(norm, RMSNormSpec) else 1e-6}

    return Pair(read, write)


def latent_scale() -> Pair:
    """Attention's scale, which mscale_all_dim sharpens."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        table = settings.section("rope_scaling") or settings.section("rope_parameters")
        share = table.optional("mscale_all_dim", float) if table else None
        scaling = one(spec, RotarySpec, "rotary positions").scaling
        scale = sharpened(scaling.factor, share) if share and isinstance(scaling, YaRN) else ScaleSpec(power=-0.5)
        return changed(spec, AttentionSpec, scale=scale)

    def write(spec: ModelSpec) -> dict[str, Any]:
        scaling = one(spec, RotarySpec, "rotary positions").scaling
        factor = one(spec, AttentionSpec, "attention").scale.factor
        table = scaling_settings(scaling)
        if table is None or not isinstance(scaling, YaRN) or factor <= 1 or scaling.factor <= 1:
            return {}
        share = round((math.sqrt(factor) - 1) / (0.1 * math.log(scaling.factor)), 12)
        if scaling.attention_factor == 1.0:  # as the released files say it
            table["mscale"] = share
            del table["attention_factor"]
        return {"rope_scaling": {**table, "mscale_all_dim": share}}

    return Pair(read, write)


def latent_rows(spec: ModelSpec) -> Iterator[TensorRow]:
    """The rows of latent attention: the latent beside the rotary key, and for each head its key beside its value."""
    mla = one(spec, MLASpec, LATENT)
    links: list[Link] = []
    for i in range(spec.n_layers):
        ours, theirs = f"stack.blocks.{i}.sublayers.{PROJECTION}", f"model.layers.{i}.self_attn"
        links += [
            link(f"{ours}.q_down", f"{theirs}.q_a_proj"),
            link(f"{ours}.norm_query", f"{theirs}.q_a_layernorm"),
            link(f"{ours}.q", f"{theirs}.{'q_b_proj' if mla.query_rank else 'q_proj'}"),
            Link((f"{ours}.kv_down", f"{ours}.k_rotary"), f"{theirs}.kv_a_proj_with_mqa", (mla.kv_rank, mla.turning)),
            link(f"{ours}.norm_kv", f"{theirs}.kv_a_layernorm"),
            Link((f"{ours}.k", f"{ours}.v"), f"{theirs}.kv_b_proj", (mla.head_dim, mla.value_width), mla.n_heads),
            link(f"{ours}.o", f"{theirs}.o_proj"),
        ]
    return rows_of(spec, links)
