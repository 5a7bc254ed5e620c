"""OLMo and OLMo 2 to and from the classes of transformers: norms without weights, norms behind the branches."""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.llama import ATTENTION, GATED, QK_NORMS, WIDTHS
from anyformer.families.olmo import olmo, olmo2
from anyformer.layers import GQASpec, RMSNormSpec

SIZES = (
    *WIDTHS,
    table.heads(),
    table.BIASES,
    table.positions(),
    table.tables(tied=False),
    table.layers(),
)
NORMS = {"0.branches.0.norm_out": "post_attention_layernorm", "1.branches.0.norm_out": "post_feedforward_layernorm"}

OLMO = table.family(
    "olmo",
    "OlmoForCausalLM",
    olmo(1, 8, 1, 8),
    (*SIZES, table.at("clip_qkv", float, GQASpec, "clip", default=None, nullable=True)),
    {**ATTENTION, **GATED},
)
OLMO2 = table.family(
    "olmo2",
    "Olmo2ForCausalLM",
    olmo2(1, 8, 1, 8),
    (*SIZES, table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5)),
    {**NORMS, **QK_NORMS, **ATTENTION, **GATED},
)
