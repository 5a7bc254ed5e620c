"""Mistral to and from transformers' MistralForCausalLM: LLaMA with one window for all layers, without biases."""

from __future__ import annotations

from anyformer.families.hf.llama import ATTENTION, D_FF, EPS, GATED, NORMS, SWIGLU, TEMPLATE
from anyformer.families.hf.template import D_MODEL, VOCABULARY, family, heads, layers, positions, tables, window

MISTRAL = family(
    "mistral",
    "MistralForCausalLM",
    TEMPLATE,
    (
        VOCABULARY,
        D_MODEL,
        D_FF,
        heads(n_kv_heads=8),
        SWIGLU,
        EPS,
        positions(context=131_072),
        window(4096),
        tables(tied=False),
        layers(),
    ),
    {**NORMS, **ATTENTION, **GATED},
)
