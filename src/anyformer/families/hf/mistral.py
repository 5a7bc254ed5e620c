"""Mistral to and from transformers' MistralForCausalLM: LLaMA with one window for all layers, without biases."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, D_FF, EPS, GATED, NORMS, SWIGLU, TEMPLATE

MISTRAL = table.family(
    "mistral",
    "MistralForCausalLM",
    TEMPLATE,
    (
        table.VOCABULARY,
        table.D_MODEL,
        D_FF,
        table.heads(n_kv_heads=8),
        SWIGLU,
        EPS,
        table.positions(context=131_072),
        table.window(4096),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **GATED},
)
