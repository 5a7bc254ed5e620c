"""Differential LLaMA to and from transformers' DiffLlamaForCausalLM: of its heads the first half are pairs with the second."""

from __future__ import annotations

from anyformer.families.diff_transformer import diff_llama
from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, GATED, NORMS, WIDTHS

OF_PAIRS = {f"{table.MIXER}.difference.{x}": f"self_attn.lambda_{x}" for x in ("q1", "k1", "q2", "k2")}


DIFFLLAMA = table.family(
    "diffllama",
    "DiffLlamaForCausalLM",
    diff_llama(1, 8, 2, 8),
    (
        *WIDTHS,
        table.heads(),
        table.BIASES,
        table.rms_eps(1e-5),
        table.positions(),
        table.tables(tied=False),
        table.only(mlp_bias=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **GATED, **OF_PAIRS},
    ignored=("lambda_std_dev",),
)
