"""Youtu-LLM to and from transformers' YoutuForCausalLM: DeepSeek-V3's attention, LLaMA's feed-forwards."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.deepseek import LAYOUT, TURNING, latent_heads, latent_scale, layer_eps, modules
from anyformer.families.hf.llama import GATED, NORMS, WIDTHS
from anyformer.families.youtu import youtu
from anyformer.layers import RotarySpec

YOUTU = table.family(
    "youtu",
    "YoutuForCausalLM",
    youtu(1, 8, 1, 8),
    (
        *WIDTHS,
        *latent_heads(),
        layer_eps(),
        table.positions(RotarySpec(layout="interleaved"), context=131_072),
        LAYOUT,
        TURNING,
        latent_scale(),
        table.tables(tied=True),
        table.layers(),
    ),
    lambda spec: {**modules(spec), **NORMS, **GATED},
    # How the tokens' table starts, which is not told apart here.
    ignored=("embedding_initializer_range",),
)
