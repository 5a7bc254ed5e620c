"""Nemotron-4 to and from transformers' NemotronForCausalLM: gains stored minus one, a feed-forward without a gate."""

from __future__ import annotations

from anyformer.families.hf.llama import ATTENTION, FEED, NORMS
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.hf.template import (
    BIASES,
    D_MODEL,
    VOCABULARY,
    activation,
    at,
    family,
    heads,
    layers,
    positions,
    tables,
)
from anyformer.families.nemotron import nemotron
from anyformer.layers import FeedForwardSpec, LayerNormSpec, RotarySpec

NEMOTRON = family(
    "nemotron",
    "NemotronForCausalLM",
    nemotron(1, 8, 1, 1),
    (
        VOCABULARY,
        D_MODEL,
        at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        heads(),
        BIASES,
        at("mlp_bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=False),
        activation("hidden_act", "relu2", FeedForwardSpec),
        at("norm_eps", float, LayerNormSpec, "eps", default=1e-5),
        positions(RotarySpec(fraction=0.5), fraction=FRACTION, context=4096),
        tables(tied=False, start=0.0134),
        layers(),
    ),
    {**NORMS, **ATTENTION, f"{FEED}.up": "mlp.up_proj", f"{FEED}.down": "mlp.down_proj"},
)
