"""Ling 3.0 to and from transformers' BailingHybridForCausalLM, which passes over the layer that predicts a token further."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.deepseek import LAYER, latent_heads, latent_scale, layer_eps, modules, n_shared
from anyformer.families.hf.experts import HELD, dense_by_type, expert_width, filed, routed
from anyformer.families.hf.kimi import routing
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import DELTA, full_each, layer_kinds
from anyformer.families.kimi import ling3
from anyformer.layers import (
    CausalConvolutionSpec,
    GatedDeltaNetSpec,
    RotarySpec,
)
from anyformer.spec import ModelSpec


def _delta(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The sizes and decays of KDA, whose heads are as many as attention's."""
    heads, dim = settings.positive("num_attention_heads", int), settings.positive("head_dim", int, 128)
    dim = settings.positive("linear_head_dim", int, dim)  # which transformers writes, and its latent's as head_dim
    bound = settings.take("kda_lower_bound", float, -5.0)
    if bound >= 0:
        raise settings.refusal("kda_lower_bound", "must be below 0")
    safe = settings.take("kda_safe_gate", bool, True)
    settings.require("linear_num_heads", heads)
    spec = changed(spec, CausalConvolutionSpec, size=settings.positive("short_conv_kernel_size", int, 4))
    return changed(
        spec,
        GatedDeltaNetSpec,
        n_heads=heads,
        n_key_heads=heads,
        key_dim=dim,
        value_dim=dim,
        bound=-bound if safe else None,
    )


def _sizes(spec: ModelSpec) -> dict[str, Any]:
    found = one(spec, GatedDeltaNetSpec)
    return {
        "linear_num_heads": found.n_heads,
        "head_dim": found.key_dim,
        "linear_head_dim": found.key_dim,
        "short_conv_kernel_size": found.convolution.size,
        "linear_conv_kernel_dim": found.convolution.size,
        "kda_safe_gate": found.bound is not None,
        "kda_lower_bound": -(found.bound or 5.0),
    }


def _mixers(spec: ModelSpec, theirs: str, forgetting: str, out: str) -> dict[Any, Any]:
    maps = {**{x: f"{x}_proj" for x in "qkv"}, "write": "b_proj", "out_gate": "g_proj", "norm": "o_norm", "out": out}
    inner = {"forget": "f_proj", "step": "dt_bias", "decay": "A_log"}
    return {
        **{f"{table.MIXER}.{ours}": f"{theirs}.{name}" for ours, name in maps.items()},
        **{f"{table.MIXER}.{ours}": f"{theirs}.{forgetting}{name}" for ours, name in inner.items()},
        **modules(spec, theirs=theirs),
        f"{table.PROJECTION}.o": f"{theirs}.{out}",
        f"{table.MIXER}.gate": f"{theirs}.g_proj",
    }


def _held(spec: ModelSpec) -> dict[Any, Any]:
    return {
        **_mixers(spec, "self_attn", "forget_gate.", "o_proj"),
        f"{table.MIXER}.convolution": "self_attn.conv1d",
        **HELD,
    }


def _filed(spec: ModelSpec) -> dict[Any, Any]:
    return {
        **_mixers(spec, "attention", "", "dense"),
        f"{table.MIXER}.convolution": Theirs("attention.*_conv1d", pieces=("q", "k", "v")),
        **filed(None),
        **routed("mlp.gate.weight", "mlp.gate.expert_bias"),
    }


SMALL = ling3(6, 8, 1, 8, 8)
LING = table.family(
    "bailing_hybrid",
    "BailingHybridForCausalLM",
    with_layers(SMALL, SMALL.stack.blocks[-2:]),
    (
        *WIDTHS,
        expert_width("moe_intermediate_size", "expert", 768),
        n_shared(1, "num_shared_experts"),
        *latent_heads(query_rank=None),
        layer_eps(),
        routing(512, 2.5, groups=8, best=4),
        table.positions(RotarySpec(theta=6e6, layout="interleaved"), context=262_144, length="model_max_length"),
        latent_scale(),
        table.Pair(_delta, _sizes),
        table.activation("hidden_act", "silu", CausalConvolutionSpec),  # of feed-forwards too
        table.tables(tied=False),
        layer_kinds(DELTA, full_each("layer_group_size", 6)),
        dense_by_type(6144, 2, "first_k_dense_replace"),
    ),
    LAYER,
    tokens_too="word_embeddings",  # in the released files
    apart=(_held, _filed),
    passed_over=1,
    ignored=(
        "num_nextn_predict_layers",
        "mtp_loss_scaling_factor",
        "linear_conv_kernel_dim",
        "layer_group_size",
    ),
)
