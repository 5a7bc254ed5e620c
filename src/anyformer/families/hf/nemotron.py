"""Nemotron-4 to and from transformers' NemotronForCausalLM: gains stored minus one, a feed-forward without a gate."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, NORMS
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.nemotron import nemotron
from anyformer.layers import FeedForwardSpec, LayerNormSpec, RotarySpec

NEMOTRON = table.family(
    "nemotron",
    "NemotronForCausalLM",
    nemotron(1, 8, 1, 1),
    (
        table.VOCABULARY,
        table.D_MODEL,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        table.heads(),
        table.BIASES,
        table.at("mlp_bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=False),
        table.activation("hidden_act", "relu2", FeedForwardSpec),
        table.at("norm_eps", float, LayerNormSpec, "eps", default=1e-5),
        table.positions(RotarySpec(fraction=0.5), fraction=FRACTION, context=4096),
        table.tables(tied=False, start=0.0134),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, f"{table.FEED}.up": "mlp.up_proj", f"{table.FEED}.down": "mlp.down_proj"},
)
