"""Persimmon and Jais 2 to and from transformers' PersimmonForCausalLM and Jais2ForCausalLM: squared ReLU between LayerNorms."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.cohere import norms_of_heads
from anyformer.families.hf.gpt_neox import DENSE
from anyformer.families.hf.layout import Theirs
from anyformer.families.hf.llama import ATTENTION, NORMS
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.persimmon import jais2, persimmon
from anyformer.layers import FeedForwardSpec, GQASpec, RotarySpec

SIZES = (
    *table.STREAM,
    table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
    table.activation("hidden_act", "relu2", FeedForwardSpec),
    table.eps(1e-5),
    table.tables(tied=False),
    table.layers(),
)
PERSIMMON = table.family(
    "persimmon",
    "PersimmonForCausalLM",
    persimmon(1, 8, 1, 8),
    (
        *SIZES,
        table.at("num_attention_heads", int, GQASpec, "n_heads"),
        table.EVEN,
        table.positions(RotarySpec(fraction=0.5), fraction=FRACTION, context=16_384),
        norms_of_heads("qk_layernorm", default=True),
    ),
    {
        **NORMS,
        table.QKV: Theirs("self_attn.query_key_value", by="head"),
        f"{table.PROJECTION}.o": "self_attn.dense",
        f"{table.PROJECTION}.norm_query": "self_attn.q_layernorm",
        f"{table.PROJECTION}.norm_key": "self_attn.k_layernorm",
        **DENSE,
    },
    norm="final_layernorm",
)
JAIS2 = table.family(
    "jais2",
    "Jais2ForCausalLM",
    jais2(1, 8, 1, 8),
    (
        *SIZES,
        table.heads(),
        table.EVEN,
        table.at("attention_bias", bool, GQASpec, *table.ALL_BIASES, default=True),
        table.at("mlp_bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=True),
        table.positions(context=8192),
    ),
    {**NORMS, **ATTENTION, **table.feeds(up="mlp.up_proj", down="mlp.down_proj")},
)
