"""LLaMA and Mistral to and from LlamaForCausalLM and MistralForCausalLM of transformers: separate matrices, halves that rotate.

Mistral's class is LLaMA's with one window for all layers, without biases.
"""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.classifiers import ClassificationHead, classifying
from anyformer.families.llama import llama
from anyformer.layers import GatedFeedForwardSpec, RMSNormSpec

TEMPLATE = llama(n_layers=1, d_model=8, n_heads=1, d_ff=8)
D_FF = table.at("intermediate_size", int, GatedFeedForwardSpec, "d_ff")
EPS = table.at("rms_norm_eps", float, RMSNormSpec, "eps", default=1e-6)
SWIGLU = table.activation("hidden_act", "silu", GatedFeedForwardSpec)

# The vocabulary, and the widths of stream and feed-forwards.
WIDTHS = (table.VOCABULARY, table.D_MODEL, D_FF, SWIGLU)

ATTENTION = {f"{table.PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkvo"}
GATED = {f"{table.FEED}.{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
QK_NORMS = {f"{table.PROJECTION}.norm_query": "self_attn.q_norm", f"{table.PROJECTION}.norm_key": "self_attn.k_norm"}
NORMS = {"0.norm_in": "input_layernorm", "1.norm_in": "post_attention_layernorm"}

LLAMA = classifying(
    table.family(
        "llama",
        "LlamaForCausalLM",
        TEMPLATE,
        (
            *WIDTHS,
            table.heads(),
            table.EVEN,
            table.BIASES,
            table.at("mlp_bias", bool, GatedFeedForwardSpec, "bias_in", "bias_out", default=False),
            EPS,
            table.positions(),
            table.tables(tied=False),
            table.layers(),
        ),
        {**NORMS, **ATTENTION, **GATED},
    ),
    {
        "LlamaForSequenceClassification": ClassificationHead("classes"),
        "LlamaForTokenClassification": ClassificationHead("token_classes"),
    },
)
MISTRAL = table.family(
    "mistral",
    "MistralForCausalLM",
    TEMPLATE,
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        EPS,
        table.positions(context=131_072),
        table.window(4096),
        table.tables(tied=False),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, **GATED},
)
