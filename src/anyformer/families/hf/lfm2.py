"""LFM2 to and from transformers' Lfm2ForCausalLM."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.hf import table
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import layer_kinds, template
from anyformer.families.lfm2 import lfm2
from anyformer.layers import (
    AttentionSpec,
    CausalConvolutionSpec,
    GatedFeedForwardSpec,
    RMSNormSpec,
    RotarySpec,
    ShortConvolutionSpec,
)
from anyformer.spec import ModelSpec

WORDS = {"conv": ShortConvolutionSpec, "full_attention": AttentionSpec}
MIXER = "0.branches.0.mixer"


def _attending(settings: Settings, n_layers: int) -> list[str]:
    listed = settings.written("full_attn_idxs")
    said = range(n_layers) if listed is None else listed
    if not isinstance(said, range | list) or not all(type(i) is int for i in said):
        raise settings.refusal("full_attn_idxs", "must be a list of layers")
    return ["full_attention" if i in said else "conv" for i in range(n_layers)]


def _width(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of feed-forwards: as it is said, or two thirds of it, times a factor, up to a multiple."""
    width = settings.positive("intermediate_size", int, 12_288)
    if settings.take("block_auto_adjust_ff_dim", bool, True):
        factor, least = (
            settings.take("block_ffn_dim_multiplier", float, 1.0),
            settings.positive("block_multiple_of", int, 256),
        )
        width = -(-int(factor * int(2 * width / 3)) // least) * least
    else:
        settings.ignore("block_ffn_dim_multiplier", "block_multiple_of")
    return changed(spec, GatedFeedForwardSpec, d_ff=width)


def _written(spec: ModelSpec) -> dict[str, Any]:
    width = one(spec, GatedFeedForwardSpec, "gated feed-forward").d_ff
    return {"intermediate_size": width, "block_auto_adjust_ff_dim": False}


LFM2 = table.family(
    "lfm2",
    "Lfm2ForCausalLM",
    template(lfm2(2, 8, 1, 8, attending=(1,)), WORDS),
    (
        table.VOCABULARY,
        table.D_MODEL,
        table.Pair(_width, _written),
        table.heads(n_kv_heads=8),
        table.at("norm_eps", float, RMSNormSpec, "eps", default=1e-5),
        table.at("conv_L_cache", int, CausalConvolutionSpec, "size", default=3),
        table.at("conv_bias", bool, ShortConvolutionSpec, "bias", default=False),
        table.at("conv_bias", bool, CausalConvolutionSpec, "bias", default=False),
        table.positions(RotarySpec(theta=1e6), context=128_000),
        table.tables(tied=True),
        layer_kinds(WORDS, _attending),
    ),
    {
        "0.norm_in": "operator_norm",
        "1.norm_in": "ffn_norm",
        f"{MIXER}.inner": "conv.in_proj",
        f"{MIXER}.convolution": "conv.conv",
        f"{MIXER}.out": "conv.out_proj",
        **{f"{table.PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkv"},
        f"{table.PROJECTION}.o": "self_attn.out_proj",
        f"{table.PROJECTION}.norm_query": "self_attn.q_layernorm",
        f"{table.PROJECTION}.norm_key": "self_attn.k_layernorm",
        **table.feeds(gate="feed_forward.w1", up="feed_forward.w3", down="feed_forward.w2"),
    },
    norm="embedding_norm",
)
