"""T5 to and from transformers' T5ForConditionalGeneration and MT5ForConditionalGeneration.

Both classes say of every model that its head is tied; whether it is, they see by what files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from anyformer.errors import SpecError
from anyformer.families.hf.layout import Link, link, rows_of
from anyformer.families.hf.mapping import Family, Files, TensorRow, dropped, one
from anyformer.families.hf.settings import ACTIVATIONS, Settings, spelling
from anyformer.families.hf.stacks import Placed, feeds, first_attention, placed, shared_table_rows, sides
from anyformer.families.t5 import t5
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    Normal,
    RelativeBucketsSpec,
    RMSNormSpec,
)
from anyformer.spec import HeadSpec, MixerSpec, ModelSpec, StackSpec, Width

HEAD = "lm_head.weight"
TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
GATED = "gated-"
# Dropout, how weights start, and what repeats feed_forward_proj.
HARMLESS = ("dropout_rate", "initializer_factor", "is_gated_act", "output_past")


def feed_forward(settings: Settings) -> MixerSpec:
    """The feed-forward that "relu", "gated-gelu" and the like stand for. Raises CheckpointError."""
    word = settings.take("feed_forward_proj", str, "relu")
    name = {"gated-gelu": "gelu_new"}.get(word, word.removeprefix(GATED))
    settings.require("dense_act_fn", name)
    if name not in ACTIVATIONS:
        raise settings.refusal("feed_forward_proj", f"is none of, or gated- before one of, {', '.join(ACTIVATIONS)}")
    d_ff, activation = Width(settings.take("d_ff", int)), ACTIVATIONS[name]
    if word.startswith(GATED):
        return GatedFeedForwardSpec(d_ff=d_ff, activation=activation)
    return FeedForwardSpec(d_ff=d_ff, activation=activation, bias_in=False, bias_out=False)


def sizes(settings: Settings, default_vocab: int) -> dict[str, Any]:
    """What the classes of this lineage say alike, as arguments of `t5`."""
    settings.ignore(*HARMLESS)
    settings.require("is_encoder_decoder", True)
    return {
        "d_model": settings.take("d_model", int),
        "n_heads": settings.take("num_heads", int),
        "head_dim": settings.take("d_kv", int, 64),
        "vocab_size": settings.take("vocab_size", int, default_vocab),
        "n_buckets": settings.take("relative_attention_num_buckets", int, 32),
        "max_distance": settings.take("relative_attention_max_distance", int, 128),
        "eps": settings.take("layer_norm_epsilon", float, 1e-6),
        "context": settings.optional("n_positions", int),
    }


def depths(settings: Settings) -> tuple[int, int]:
    """The layers of encoder and decoder."""
    n_layers = settings.take("num_layers", int)
    return n_layers, settings.take("num_decoder_layers", int, n_layers)


def _spec(settings: Settings, tied: bool, scaled: bool, default_vocab: int) -> ModelSpec:
    feed, (n_encoder, n_decoder) = feed_forward(settings), depths(settings)
    found = sizes(settings, default_vocab)
    spec = t5(**found, encoder=(feed,) * n_encoder, decoder=(feed,) * n_decoder, tied=tied, scaled=scaled)
    settings.close()
    return spec


def to_spec(settings: Settings) -> ModelSpec:
    """The model that a T5 configuration describes. Raises CheckpointError."""
    tied = settings.take("tie_word_embeddings", bool, True)
    return _spec(settings, tied, settings.take("scale_decoder_outputs", bool, tied), 32_128)


def multilingual(settings: Settings) -> ModelSpec:
    """The model that an mT5 configuration describes; none of its heads is scaled. Raises CheckpointError."""
    return _spec(settings, settings.take("tie_word_embeddings", bool, True), False, 250_112)


def written(spec: ModelSpec) -> dict[str, Any]:
    """The settings that `sizes` and `depths` read. Raises SpecError for a model that lacks a whole part."""
    encoder, decoder = sides(spec)
    heads, buckets = one(spec, GQASpec, "multi-head attention"), one(spec, RelativeBucketsSpec, "buckets of distance")
    return {
        "vocab_size": spec.vocab_size,
        "d_model": spec.stack.d_model,
        "d_kv": heads.head_dim or spec.stack.d_model // heads.n_heads,
        "num_layers": len(encoder.stack.blocks),
        "num_decoder_layers": len(decoder.stack.blocks),
        "num_heads": heads.n_heads,
        "relative_attention_num_buckets": buckets.n_buckets,
        "relative_attention_max_distance": buckets.max_distance,
        "layer_norm_epsilon": one(spec, RMSNormSpec, "RMS norm").eps,
        "initializer_factor": _start(spec),
        "dropout_rate": 0.0,
        "is_encoder_decoder": True,
        **({} if spec.context is None else {"n_positions": spec.context}),
    }


def to_config(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration of T5. Raises SpecError for a model that lacks a whole part of it."""
    head = one(spec, HeadSpec, "head")
    tied = {"tie_word_embeddings": bool(head.tied), "scale_decoder_outputs": head.scale is not None}
    return written(spec) | spelled_feed(spec) | tied


def to_multilingual(spec: ModelSpec) -> dict[str, Any]:
    """The nearest configuration of mT5. Raises SpecError for a model that lacks a whole part of it."""
    return written(spec) | spelled_feed(spec) | {"tie_word_embeddings": bool(one(spec, HeadSpec, "head").tied)}


def spelled_feed(spec: ModelSpec) -> dict[str, Any]:
    """The settings that `feed_forward` reads."""
    feed = feeds(spec.stack)[0]
    if not isinstance(feed, FeedForwardSpec | GatedFeedForwardSpec):
        raise SpecError("the model has no feed-forward")
    name = spelling(feed.activation) or "relu"
    if isinstance(feed, FeedForwardSpec):
        return {"d_ff": feed.d_ff, "feed_forward_proj": name}
    return {"d_ff": feed.d_ff, "feed_forward_proj": GATED + ("gelu" if name == "gelu_new" else name)}


def attention_links(at: Placed, theirs: str) -> Iterator[Link]:
    """The links of an attention, theirs the layer's name; nothing for another mixer."""
    if isinstance(at.mixer, AttentionSpec):
        kind = "EncDecAttention" if at.mixer.reads == "memory" else "SelfAttention"
        yield from (link(f"{at.path}.projection.{x}", f"{theirs}.{kind}.{x}") for x in "qkvo")


def rows_with(spec: ModelSpec, feed: Callable[[Placed, str], Iterator[Link]]) -> list[TensorRow]:
    """The table of tensors; `feed` gives the links of what is no attention, its layer's name being theirs."""
    found = shared_table_rows(spec, "shared.weight", HEAD, TABLES)
    links: list[Link] = []
    for side in sides(spec):
        links.append(link(f"{side.ours}.norm", f"{side.theirs}.final_layer_norm"))
        buckets = f"{side.theirs}.block.0.layer.{{}}.relative_attention_bias"
        links.append(link(f"shared.{_buckets(side.stack)}", buckets.format("0.SelfAttention")))
        for at in placed(side):
            theirs = f"{side.theirs}.block.{at.layer}.layer.{at.number}"
            links += [link(f"{at.sublayer}.norm_in", f"{theirs}.layer_norm"), *attention_links(at, theirs)]
            if not isinstance(at.mixer, AttentionSpec):
                links += feed(at, theirs)
    old = dropped("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")  # of no use
    return [*found, old, *rows_of(spec, links)]


def rows(spec: ModelSpec) -> list[TensorRow]:
    """The table of tensors."""
    return rows_with(spec, _dense)


def untied(spec: ModelSpec, files: Files) -> ModelSpec:
    """The model with a table of the head's own where files hold one beside the tokens', whatever was said."""
    table = next((name for name in ("shared.weight", *TABLES) if name in files), None)
    if table is None or HEAD not in files or torch.equal(files.read(table), files.read(HEAD)):
        return spec
    return spec.but(heads=tuple(head.but(table=head.table and head.table.but(shared=None)) for head in spec.heads))


def _buckets(stack: StackSpec) -> str | None:
    return next((score.shared for score in first_attention(stack).scores), None)


def _start(spec: ModelSpec) -> float:
    table = spec.init.table if isinstance(spec.init, ByRole) else None
    return table.scale if isinstance(table, Normal) else 1.0


def _dense(at: Placed, theirs: str) -> Iterator[Link]:
    several = isinstance(at.mixer, GatedFeedForwardSpec)
    names = {"gate": "wi_0", "up": "wi_1" if several else "wi", "down": "wo"}
    yield from (link(f"{at.path}.{ours}", f"{theirs}.DenseReluDense.{name}") for ours, name in names.items())


T5 = Family("t5", "T5ForConditionalGeneration", "", to_spec, to_config, rows, of_files=untied)
MT5 = Family("mt5", "MT5ForConditionalGeneration", "", multilingual, to_multilingual, rows, of_files=untied)
