"""RecurrentGemma to and from transformers' RecurrentGemmaForCausalLM, whose d_ff is half of what its files say."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, with_layers
from anyformer.families.hf import table
from anyformer.families.hf.layout import gated
from anyformer.families.hf.llama import EPS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.states import kinds_of, template
from anyformer.families.recurrent_gemma import recurrent_gemma
from anyformer.layers import (
    AttentionSpec,
    CausalConvolutionSpec,
    GatedFeedForwardSpec,
    GQASpec,
    RGLRUSpec,
    RotarySpec,
    SlidingWindow,
)
from anyformer.spec import HeadSpec, ModelSpec

WORDS = {"recurrent": RGLRUSpec, "attention": AttentionSpec}
THEIRS = "temporal_block"
TANH = "gelu_pytorch_tanh"


def _sizes(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The recurrence's, which has as many blocks as there are heads."""
    width = settings.nullable("lru_width", int, None) or spec.stack.d_model
    n_blocks = one(spec, GQASpec).n_heads
    if width % n_blocks:
        raise settings.refusal("lru_width", f"must be a multiple of num_attention_heads = {n_blocks}")
    d_ff = settings.positive("intermediate_size", int, 7680)
    return changed(changed(spec, RGLRUSpec, width=width, n_blocks=n_blocks), GatedFeedForwardSpec, d_ff=d_ff // 2)


def _written(spec: ModelSpec) -> dict[str, int]:
    feed = one(spec, GatedFeedForwardSpec)
    return {"lru_width": one(spec, RGLRUSpec).width, "intermediate_size": 2 * feed.d_ff}


def _kinds(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Each layer's kind, by words that are repeated until there are enough."""
    n_layers = settings.positive("num_hidden_layers", int, 26)
    words = settings.strings("block_types") or ("recurrent", "recurrent", "attention")
    blocks = dict(zip(WORDS, spec.stack.blocks, strict=True))
    if set(words) - set(blocks):
        raise settings.refusal("block_types", f"must be words of {' and '.join(blocks)}")
    layers = tuple(blocks[words[i % len(words)]] for i in range(n_layers))
    return with_layers(spec, layers)


def _words(spec: ModelSpec) -> dict[str, Any]:
    return {"num_hidden_layers": spec.n_layers, "block_types": kinds_of(spec, WORDS)}


RECURRENT_GEMMA = table.family(
    "recurrent_gemma",
    "RecurrentGemmaForCausalLM",
    template(recurrent_gemma(3, 8, 1, 8, 8), WORDS),
    (
        *table.STREAM,
        table.heads(),
        table.EVEN,
        table.at("attention_bias", bool, GQASpec, *table.QKV_BIASES, default=False),
        table.Pair(_sizes, _written),
        table.at("conv1d_width", int, CausalConvolutionSpec, "size", default=4),
        table.at("attention_window_size", int, SlidingWindow, "size", default=2048),
        table.activation("hidden_activation", TANH, GatedFeedForwardSpec),
        table.activation("hidden_activation", TANH, RGLRUSpec),
        table.at("logits_soft_cap", float, HeadSpec, "softcap", default=30.0),
        EPS,
        table.positions(RotarySpec(fraction=0.5), fraction=FRACTION, context=8192),
        table.tables(tied=True),
        table.Pair(_kinds, _words),
    ),
    {
        "0.norm_in": "temporal_pre_norm",
        "1.norm_in": "channel_pre_norm",
        **{f"{table.PROJECTION}.{x}": f"{THEIRS}.{x}_proj" for x in "qkvo"},
        f"{table.MIXER}.inner": f"{THEIRS}.linear_x",
        f"{table.MIXER}.out_gate": f"{THEIRS}.linear_y",
        f"{table.MIXER}.out": f"{THEIRS}.linear_out",
        f"{table.MIXER}.convolution": f"{THEIRS}.conv_1d",
        f"{table.MIXER}.decay": f"{THEIRS}.rg_lru.recurrent_param",
        f"{table.MIXER}.forget": f"{THEIRS}.rg_lru.recurrent_gate_weight",
        f"{table.MIXER}.forget_bias": f"{THEIRS}.rg_lru.recurrent_gate_bias",
        f"{table.MIXER}.write": f"{THEIRS}.rg_lru.input_gate_weight",
        f"{table.MIXER}.write_bias": f"{THEIRS}.rg_lru.input_gate_bias",
        **gated(table.FEED, "mlp_block"),
    },
    norm="final_norm",
    ignored=("w_init_variance_scale", "final_w_init_variance_scale"),
)
