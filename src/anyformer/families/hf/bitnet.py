"""BitNet to and from transformers' BitNetForCausalLM, with float weights: packed ones are refused."""

from __future__ import annotations

from anyformer.families.bitnet import bitnet
from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, D_FF, GATED, NORMS
from anyformer.layers import GatedFeedForwardSpec, RotarySpec

BITNET = table.family(
    "bitnet",
    "BitNetForCausalLM",
    bitnet(1, 8, 1, 8),
    (
        *table.STREAM,
        D_FF,
        table.activation("hidden_act", "relu2", GatedFeedForwardSpec),
        table.heads(n_kv_heads=5),
        table.EVEN,
        table.BIASES,
        table.rms_eps(1e-5),
        table.positions(RotarySpec(theta=500_000.0), context=2048),
        table.tables(tied=False),
        table.layers(),
    ),
    {
        **NORMS,
        **ATTENTION,
        **GATED,
        f"{table.MIXER}.norm": "self_attn.attn_sub_norm",
        f"{table.FEED}.norm": "mlp.ffn_sub_norm",
    },
)
