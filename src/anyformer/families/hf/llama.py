"""LLaMA to and from transformers' LlamaForCausalLM: separate matrices, rotary features in the half layout already."""

from __future__ import annotations

from anyformer.families.hf.classifiers import ClassificationHead, classifying
from anyformer.families.hf.template import (
    BIASES,
    D_MODEL,
    EVEN,
    VOCABULARY,
    activation,
    at,
    family,
    heads,
    layers,
    positions,
    tables,
)
from anyformer.families.llama import llama
from anyformer.layers import GatedFeedForwardSpec, RMSNormSpec

TEMPLATE = llama(n_layers=1, d_model=8, n_heads=1, d_ff=8)
D_FF = at("intermediate_size", int, GatedFeedForwardSpec, "d_ff")
EPS = at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-6)
SWIGLU = activation("hidden_act", "silu", GatedFeedForwardSpec)

PROJECTION, FEED = "0.branches.0.mixer.projection", "1.branches.0.mixer"
ATTENTION = {f"{PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkvo"}
GATED = {f"{FEED}.{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
NORMS = {"0.norm_in": "input_layernorm", "1.norm_in": "post_attention_layernorm"}

LLAMA = classifying(
    family(
        "llama",
        "LlamaForCausalLM",
        TEMPLATE,
        (
            VOCABULARY,
            D_MODEL,
            D_FF,
            heads(),
            EVEN,
            BIASES,
            at("mlp_bias", bool, GatedFeedForwardSpec, "bias_in", "bias_out", default=False),
            SWIGLU,
            EPS,
            positions(),
            tables(tied=False),
            layers(),
        ),
        {**NORMS, **ATTENTION, **GATED},
    ),
    {
        "LlamaForSequenceClassification": ClassificationHead("classes"),
        "LlamaForTokenClassification": ClassificationHead("token_classes"),
    },
)
