"""nanochat to and from transformers' NanoChatForCausalLM, none of whose norms holds a tensor."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.gemma import SOFTCAP
from anyformer.families.hf.llama import ATTENTION, EPS
from anyformer.families.nanochat import nanochat
from anyformer.layers import FeedForwardSpec, RotarySpec
from anyformer.spec import HeadSpec

NANOCHAT = table.family(
    "nanochat",
    "NanoChatForCausalLM",
    nanochat(1, 8, 1, 8),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff", default=8192),
        table.activation("hidden_act", "relu2", FeedForwardSpec),
        table.heads(),
        table.BIASES,
        EPS,
        table.at(SOFTCAP, float, HeadSpec, "softcap", default=15.0, nullable=True),
        table.positions(RotarySpec(backwards=True), context=2048),
        table.tables(tied=False),
        table.layers(),
    ),
    {**ATTENTION, **table.feeds(up="mlp.fc1", down="mlp.fc2")},
)
