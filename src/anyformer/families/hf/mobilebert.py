"""MobileBERT to and from transformers' MobileBertModel and the classes with heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from anyformer.families.compose import edited, with_layers
from anyformer.families.hf import headings, table
from anyformer.families.hf.bert import LAYER, WORDS, bert_heads
from anyformer.families.hf.encoder import SEGMENTS, encoder_family, n_positions
from anyformer.families.hf.layout import Laid, Theirs, of_layers, within
from anyformer.families.hf.mapping import TensorRow, one, reshaped, same
from anyformer.families.hf.settings import Settings
from anyformer.families.mobilebert import layer, masked_words, mobilebert
from anyformer.layers import BottleneckSpec, FeedForwardSpec, GQASpec, LayerNormSpec, LinearSpec
from anyformer.spec import ModelSpec, TableSpec, Width

TABLE = 128  # the width of the table of tokens where nothing is said, and of bottlenecks
TOKENS = "embedding_transformation"


def _normed(ours: str, theirs: str) -> dict[str, str]:
    """The gain and the shift that stand for a norm."""
    return {f"{ours}.maps.0": theirs, f"{ours}.maps.1": theirs}


def _bottleneck(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.maps.0": f"{theirs}.dense", **_normed(f"{ours}.maps.1", f"{theirs}.LayerNorm")}


CONNECTION = {
    **_bottleneck("into", "bottleneck.input"),
    **_bottleneck("reads", "bottleneck.attention"),
    "out": "output.bottleneck.dense",
    **_normed("norm", "output.bottleneck.LayerNorm"),
}


def _read_sizes(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """The sizes within layers, and how many layers and feed-forwards there are."""
    width = settings.positive("intra_bottleneck_size", int, TABLE)
    settings.require("true_hidden_size", width)
    n_heads = settings.positive("num_attention_heads", int, 4)
    d_ff, n_feeds = (
        settings.positive(name, int, default)
        for name, default in (("intermediate_size", 512), ("num_feedforward_networks", 4))
    )
    if width % n_heads:
        raise settings.refusal("num_attention_heads", f"does not divide intra_bottleneck_size = {width}")
    own = layer(n_heads, d_ff, width, n_feeds)
    return with_layers(spec, [own] * settings.positive("num_hidden_layers", int, 24))


def _write_sizes(spec: ModelSpec) -> dict[str, Any]:
    bottleneck = one(spec, BottleneckSpec)
    return {
        "intra_bottleneck_size": one(bottleneck.into, LinearSpec).d_out or spec.stack.d_model,
        "num_attention_heads": one(spec, GQASpec).n_heads,
        "intermediate_size": one(spec, FeedForwardSpec).d_ff,
        "num_feedforward_networks": len(spec.stack.blocks[0].sublayers) - 1,
        "num_hidden_layers": spec.n_layers,
    }


def _read_table(settings: Settings, spec: ModelSpec) -> ModelSpec:
    width = settings.positive("embedding_size", int, TABLE)
    if width >= spec.stack.d_model:
        raise settings.refusal("embedding_size", f"leaves the head no features of hidden_size = {spec.stack.d_model}")
    return edited(spec, TableSpec, lambda found: found.but(width=Width(width)))


def _links(spec: ModelSpec) -> Laid:
    n = len(spec.stack.blocks[0].sublayers) - 1
    modules = {ours: theirs for ours, theirs in LAYER.items() if ours.startswith(table.PROJECTION)}
    modules |= _normed("0.norm_sum", "attention.output.LayerNorm")
    for i in range(1, n + 1):
        place = "" if i == n else f"ffn.{i - 1}."
        modules |= {f"{i}.branches.0.mixer.up": f"{place}intermediate.dense"}
        modules |= {f"{i}.branches.0.mixer.down": f"{place}output.dense"}
        modules |= _normed(f"{i}.norm_sum", f"{place}output.LayerNorm")
    around = {
        "stack.embedding.terms.1": "embeddings.position_embeddings",
        "stack.embedding.terms.2": "embeddings.token_type_embeddings",
        **_normed("stack.embedding.norm", "embeddings.LayerNorm"),
    }
    found = within(around) | of_layers(spec.stack, "encoder.layer", modules)
    for i in range(spec.n_layers):
        found |= within(CONNECTION, f"stack.blocks.{i}.connection.", f"encoder.layer.{i}.")
    return found


def _tokens(spec: ModelSpec) -> Iterator[TensorRow]:
    """The map of three tokens, of which theirs has the next one first."""

    def turned(weight: Tensor) -> Tensor:
        return weight.unflatten(1, (3, -1)).flip(1).flatten(1)

    ours, theirs = "stack.embedding.terms.0.projection", f"embeddings.{TOKENS}"
    yield reshaped(f"{ours}.weight", f"{theirs}.weight", turned, turned)
    yield same(f"{ours}.bias", f"{theirs}.bias")


MASKED = headings.Heading(
    lambda spec, n: masked_words(spec, headings.of_feed_forwards(spec)),
    {
        "transform.0": f"{WORDS}.transform.dense",
        "transform.2": f"{WORDS}.transform.LayerNorm",
        "beside": Theirs(f"{WORDS}.dense.weight", turned=True),
        "": Theirs(WORDS, also=(f"{WORDS}.decoder",)),
    },
)
HEADS = bert_heads("MobileBert", "mobilebert.", words=MASKED)
MOBILEBERT = encoder_family(
    "mobilebert",
    mobilebert(1, 16, 1, 8, width=8, n_feeds=1),
    (
        *table.STREAM,
        table.Pair(_read_sizes, _write_sizes),
        table.Pair(_read_table, lambda spec: {"embedding_size": one(spec, TableSpec).width}),
        table.activation("hidden_act", "relu", FeedForwardSpec),
        table.starts(),
        SEGMENTS,
        n_positions(),
        # Norms instead of gains and shifts have two eps there, of which a setting says one; the others would need other layers.
        table.only(
            normalization_type="no_norm",
            trigram_input=True,
            use_bottleneck=True,
            use_bottleneck_attention=False,
            key_query_shared_bottleneck=True,
            classifier_activation=True,
        ),
    ),
    HEADS,
    _links,
    further=_tokens,
    of_heads=(table.if_any(LayerNormSpec, table.eps(1e-12)),),
)
