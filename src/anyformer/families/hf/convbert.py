"""ConvBERT to and from transformers' ConvBertModel and the classes with heads, which are ELECTRA's by other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.families.compose import changed, edited
from anyformer.families.convbert import convbert
from anyformer.families.hf import headings, table
from anyformer.families.hf.bert import GENERATED, LAYER
from anyformer.families.hf.encoder import SEGMENTS, encoder_family, laid_out, n_positions, width
from anyformer.families.hf.layout import Laid, Theirs
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings
from anyformer.layers import FeedForwardSpec, GQASpec, SpanConvolutionSpec
from anyformer.spec import ModelSpec, SublayerSpec

CONV, OUT, KEYS = "0.branches.1.mixer", "attention.output.dense", "attention.self.key_conv_attn_layer"


def _heads(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Of `num_attention_heads`, one in `head_ratio` attends, at least one; beside them are as many convolutions."""
    said, ratio = settings.positive("num_attention_heads", int, 12), settings.positive("head_ratio", int, 2)
    n, d_model = max(1, said // ratio), spec.stack.d_model
    if d_model % (2 * n):
        raise settings.refusal(
            "num_attention_heads", f"makes {n} heads and {n} convolutions, which do not divide hidden_size = {d_model}"
        )

    def both(sublayer: SublayerSpec) -> SublayerSpec:
        return changed(changed(sublayer, GQASpec, n_heads=n), SpanConvolutionSpec, n_heads=n)

    return edited(spec, SublayerSpec, both)


def _written(spec: ModelSpec) -> dict[str, Any]:
    return {"num_attention_heads": 2 * one(spec, GQASpec).n_heads, "head_ratio": 2}


def _layer(spec: ModelSpec) -> Mapping[str | tuple[str, ...], str | Theirs]:
    d_model, o = spec.stack.d_model, f"{table.PROJECTION}.o"
    grouped = one(spec, FeedForwardSpec).groups > 1
    return {
        **{ours: theirs for ours, theirs in LAYER.items() if ours != o},
        **{f"{table.FEED}.{x}": Theirs(LAYER[f"{table.FEED}.{x}"], turned=grouped) for x in ("up", "down")},
        (f"{o}.weight", f"{CONV}.out.weight"): Theirs(f"{OUT}.weight", by="input"),
        f"{o}.bias": f"{OUT}.bias",
        f"{CONV}.span": f"{KEYS}.depthwise.weight",
        f"{CONV}.key.weight": Theirs(f"{KEYS}.pointwise.weight", by=(-1, d_model, 1)),
        f"{CONV}.key.bias": Theirs(f"{KEYS}.bias", by=(-1, 1)),
        f"{CONV}.kernel": "attention.self.conv_kernel_layer",
        f"{CONV}.value": "attention.self.conv_out_layer",
    }


def _links(spec: ModelSpec) -> Laid:
    return laid_out(_layer(spec), outside={"stack.embedding.projection": "embeddings_project"})(spec)


WORDS = headings.words(f"{GENERATED}.dense", f"{GENERATED}.LayerNorm", "generator_lm_head")
HEADS = headings.poolerless("ConvBert", "convbert.", WORDS)
CONVBERT = encoder_family(
    "convbert",
    convbert(1, 8, 2),
    (
        *table.STREAM,
        table.at("intermediate_size", int, FeedForwardSpec, "d_ff"),
        table.Pair(_heads, _written),
        table.at("conv_kernel_size", int, SpanConvolutionSpec, "size", default=9),
        table.activation("hidden_act", "gelu", FeedForwardSpec),
        table.starts(),
        table.layers(),
        width(768, always=False),
        SEGMENTS,
        table.eps(1e-12),
        n_positions(),
        table.at("num_groups", int, FeedForwardSpec, "groups", default=1),
    ),
    HEADS,
    _links,
)
