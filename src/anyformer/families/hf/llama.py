"""LLaMA, Mistral, Ministral, OLMo 1 and 2, Nemotron-4 to and from transformers' classes: separate matrices, halves that rotate.

Mistral's class is LLaMA's with one window for all layers, without biases. OLMo's norms have no weights, OLMo 2's stand behind the
branches. Nemotron stores gains minus one and has feed-forwards without a gate.
"""

from __future__ import annotations

from anyformer.families.hf import table, windows
from anyformer.families.hf.layout import gated
from anyformer.families.hf.rotary import FRACTION
from anyformer.families.llama import llama
from anyformer.families.mistral import ministral
from anyformer.families.nemotron import nemotron
from anyformer.families.olmo import olmo, olmo2
from anyformer.layers import FeedForwardSpec, GatedFeedForwardSpec, GQASpec, RotarySpec

TEMPLATE = llama(n_layers=1, d_model=8, n_heads=1, d_ff=8)
D_FF = table.at("intermediate_size", int, GatedFeedForwardSpec, "d_ff")
EPS = table.rms_eps(1e-6)
SWIGLU = table.activation("hidden_act", "silu", GatedFeedForwardSpec)
MLP_BIAS = table.at("mlp_bias", bool, GatedFeedForwardSpec, "bias_in", "bias_out", default=False)

# The vocabulary, and the widths of stream and feed-forwards, or of the stream alone where experts have their own.
WIDTHS = (*table.STREAM, D_FF, SWIGLU)
SPARSE_WIDTHS = (*table.STREAM, SWIGLU)

ATTENTION = {f"{table.PROJECTION}.{x}": f"self_attn.{x}_proj" for x in "qkvo"}
GATED = gated(table.FEED, "mlp")
QK_NORMS = {f"{table.PROJECTION}.norm_query": "self_attn.q_norm", f"{table.PROJECTION}.norm_key": "self_attn.k_norm"}
NORMS = {"0.norm_in": "input_layernorm", "1.norm_in": "post_attention_layernorm"}


def settings_of(
    heads: table.Pair, eps: table.Pair = EPS, plain: RotarySpec | None = None, context: int = 2048
) -> tuple[table.Pair, ...]:
    """The settings of LLaMA's class; the arguments are what a model's configuration takes where nothing is said."""
    return (
        *WIDTHS,
        heads,
        table.EVEN,
        table.BIASES,
        MLP_BIAS,
        eps,
        table.positions(plain, context=context),
        table.tables(tied=False),
        table.layers(),
    )


LAYER = {**NORMS, **ATTENTION, **GATED}
LLAMA = table.family("llama", "LlamaForCausalLM", TEMPLATE, settings_of(table.heads()), LAYER)
MISTRAL = table.family(
    "mistral",
    "MistralForCausalLM",
    TEMPLATE,
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        EPS,
        table.positions(context=131_072),
        windows.window(4096),
        table.tables(tied=False),
        table.layers(),
    ),
    LAYER,
)
MINISTRAL = table.family(
    "ministral",
    "MinistralForCausalLM",
    windows.two_kinds(ministral(4, 8, 1, 8)),
    (
        *WIDTHS,
        table.heads(n_kv_heads=8),
        EPS,
        table.positions(context=131_072),
        table.tables(tied=False),
        windows.layer_types(lambda settings, n: [settings.nullable(windows.WINDOW, int, 4096) is None] * n, 4096),
    ),
    LAYER,
)

OLMO_SIZES = (
    *WIDTHS,
    table.heads(),
    table.BIASES,
    table.positions(),
    table.tables(tied=False),
    table.layers(),
)
NORMS_BEHIND = {
    "0.branches.0.norm_out": "post_attention_layernorm",
    "1.branches.0.norm_out": "post_feedforward_layernorm",
}

OLMO = table.family(
    "olmo",
    "OlmoForCausalLM",
    olmo(1, 8, 1, 8),
    (*OLMO_SIZES, table.at("clip_qkv", float, GQASpec, "clip", default=None, nullable=True)),
    {**ATTENTION, **GATED},
)
OLMO2 = table.family(
    "olmo2",
    "Olmo2ForCausalLM",
    olmo2(1, 8, 1, 8),
    (*OLMO_SIZES, table.rms_eps(1e-5)),
    {**NORMS_BEHIND, **QK_NORMS, **ATTENTION, **GATED},
)
NEMOTRON = table.family(
    "nemotron",
    "NemotronForCausalLM",
    nemotron(1, 8, 1, 1),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        table.heads(),
        table.BIASES,
        table.at("mlp_bias", bool, FeedForwardSpec, "bias_in", "bias_out", default=False),
        table.activation("hidden_act", "relu2", FeedForwardSpec),
        table.eps(1e-5, "norm_eps"),
        table.positions(RotarySpec(fraction=0.5), fraction=FRACTION, context=4096),
        table.tables(tied=False, start=0.0134),
        table.layers(),
    ),
    {**NORMS, **ATTENTION, f"{table.FEED}.up": "mlp.up_proj", f"{table.FEED}.down": "mlp.down_proj"},
)
