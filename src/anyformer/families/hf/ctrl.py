"""CTRL to and from transformers' CTRLLMHeadModel."""

from __future__ import annotations

from anyformer.families.ctrl import ctrl
from anyformer.families.hf import table
from anyformer.families.hf.gpt2 import D_MODEL, N_HEADS, NO_DROPOUT
from anyformer.layers import FeedForwardSpec

ATTENTION = "multi_head_attention"
CTRL = table.family(
    "ctrl",
    "CTRLLMHeadModel",
    ctrl(1, 8, 1, 8),
    (
        table.VOCABULARY,
        table.context("n_positions", 256),
        D_MODEL,
        N_HEADS,
        table.EVEN,
        table.at("dff", int, FeedForwardSpec, "d_ff", default=8192),
        # Norms in layers have it whatever is said.
        table.only(layer_norm_epsilon=1e-6),
        table.tables(tied=True),
        table.layers("n_layer"),
        table.fixed(layer_norm_epsilon=1e-6),
        NO_DROPOUT,
    ),
    {
        **table.norms("layernorm1", "layernorm2"),
        **{f"{table.PROJECTION}.{x}": f"{ATTENTION}.W{x}" for x in "qkv"},
        f"{table.PROJECTION}.o": f"{ATTENTION}.dense",
        **table.feeds(up="ffn.0", down="ffn.2"),
    },
    stack="transformer",
    layer="h",
    tokens="w",
    norm="layernorm",
    unneeded=("transformer.pos_encoding",),  # the sinusoids, in old files
)
