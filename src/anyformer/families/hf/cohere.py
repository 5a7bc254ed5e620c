"""Command R and A to and from transformers' CohereForCausalLM and Cohere2ForCausalLM: rotary pairs stay interleaved."""

from __future__ import annotations

from anyformer.families.cohere import cohere, cohere2
from anyformer.families.hf import table, windows
from anyformer.families.hf.layout import gated
from anyformer.families.hf.llama import ATTENTION, QK_NORMS, WIDTHS
from anyformer.families.hf.mapping import one
from anyformer.families.hf.scales import scaled_by
from anyformer.layers import GQASpec, NormSpec, RotarySpec
from anyformer.spec import HeadSpec


def norms_of_heads(name: str, default: bool = False) -> table.Pair:
    """Whether queries and keys are normed, as the stream is."""
    return table.switch(name, GQASpec, "norm_query", "norm_key", on=lambda spec: one(spec, NormSpec), default=default)


LOGITS = scaled_by("logit_scale", HeadSpec, 0.0625)
EPS = table.eps(1e-5)
SIZES = (
    *WIDTHS,
    table.heads(),
    table.BIASES,
    EPS,
    LOGITS,
    table.tables(tied=True),
)
MODULES = {
    "0.norm_in": "input_layernorm",
    **ATTENTION,
    **gated("0.branches.1.mixer", "mlp"),
}
ROTARY = RotarySpec(theta=500_000.0, layout="interleaved")  # the class's own theta

COHERE = table.family(
    "cohere",
    "CohereForCausalLM",
    cohere(1, 8, 1, 8, 1, theta=1.0, logit_scale=1.0),
    (*SIZES, norms_of_heads("use_qk_norm"), table.positions(ROTARY, context=8192), table.layers()),
    {**MODULES, **QK_NORMS},
)
COHERE2 = table.family(
    "cohere2",
    "Cohere2ForCausalLM",
    windows.two_kinds(cohere2(4, 8, 1, 8, 1)),
    (
        *SIZES,
        table.positions(ROTARY.but(theta=10_000.0), context=8192),
        windows.layer_types(windows.each(4, "sliding_window_pattern"), 4096),
    ),
    MODULES,
    ignored=("order_of_interleaved_layers", "position_embedding_type", "rotary_pct"),
)
