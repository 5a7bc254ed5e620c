"""OLMo and OLMo 2 to and from the classes of transformers: norms without weights, norms behind the branches."""

from __future__ import annotations

from anyformer.families.hf.llama import ATTENTION, D_FF, GATED, PROJECTION, SWIGLU
from anyformer.families.hf.template import (
    BIASES,
    D_MODEL,
    VOCABULARY,
    at,
    family,
    heads,
    layers,
    positions,
    tables,
)
from anyformer.families.olmo import olmo, olmo2
from anyformer.layers import GQASpec, RMSNormSpec

SIZES = (VOCABULARY, D_MODEL, D_FF, heads(), BIASES, SWIGLU, positions(), tables(tied=False), layers())
NORMS = {
    "0.branches.0.norm_out": "post_attention_layernorm",
    "1.branches.0.norm_out": "post_feedforward_layernorm",
    f"{PROJECTION}.norm_query": "self_attn.q_norm",
    f"{PROJECTION}.norm_key": "self_attn.k_norm",
}

OLMO = family(
    "olmo",
    "OlmoForCausalLM",
    olmo(1, 8, 1, 8),
    (*SIZES, at("clip_qkv", float, GQASpec, "clip", default=None, nullable=True)),
    {**ATTENTION, **GATED},
)
OLMO2 = family(
    "olmo2",
    "Olmo2ForCausalLM",
    olmo2(1, 8, 1, 8),
    (*SIZES, at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-5)),
    {**NORMS, **ATTENTION, **GATED},
)
