"""DeBERTa v1, v2 and v3 to and from transformers' DebertaModel and DebertaV2Model and the classes that put heads on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.deberta import convolved, deberta, deberta_v2
from anyformer.families.electra import replaced
from anyformer.families.hf.encoder import SIZES, encoder_family, eps
from anyformer.families.hf.headings import (
    LABELLED,
    Heading,
    HeadNames,
    of_feed_forwards,
    row_labels,
    usual_classes,
    words,
)
from anyformer.families.hf.layout import Link, link, of_layers
from anyformer.families.hf.mapping import TensorRow, fused, one, same
from anyformer.families.hf.settings import Settings, spelling
from anyformer.families.hf.table import FEED, PROJECTION, Pair
from anyformer.layers import (
    GELU,
    ContentToPositionSpec,
    ConvolutionSpec,
    GQASpec,
    LayerNormSpec,
    LinearSpec,
    PositionToContentSpec,
    RelativeTableSpec,
)
from anyformer.spec import Count, Length, ModelSpec

TABLE = "table of distances"
SCORES = "0.branches.0.mixer.scores"
LAYER = {
    f"{PROJECTION}.o": "attention.output.dense",
    "0.norm_sum": "attention.output.LayerNorm",
    f"{FEED}.up": "intermediate.dense",
    f"{FEED}.down": "output.dense",
    "1.norm_sum": "output.LayerNorm",
}
OWN = {f"{SCORES}.0.projection": "attention.self.pos_proj", f"{SCORES}.1.projection": "attention.self.pos_q_proj"}


def relative() -> Pair:
    """How far distances are told apart; the classes' other ways to use positions are refused."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        if not settings.take("relative_attention", bool, False):
            raise settings.refusal("relative_attention", "is not computed here; only True is")
        if settings.take("position_biased_input", bool, True):
            raise settings.refusal("position_biased_input", "is not computed here; only False is")
        kinds = settings.written("pos_att_type")
        kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or sorted(map(str, kinds)) != ["c2p", "p2c"]:
            raise settings.refusal("pos_att_type", "is not computed here; only ['p2c', 'c2p'] is")
        context = settings.take("max_position_embeddings", int, 512)
        farthest = settings.take("max_relative_positions", int, -1)
        farthest = context if farthest < 1 else farthest
        return changed(spec, RelativeTableSpec, farthest=Length(farthest)).but(context=Length(context))

    def write(spec: ModelSpec) -> dict[str, Any]:
        farthest = one(spec, RelativeTableSpec, TABLE).farthest
        context = spec.context or farthest
        return {
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "max_position_embeddings": context,
            "max_relative_positions": -1 if farthest == context else farthest,
            "type_vocab_size": 0,
            "legacy": False,
        }

    return Pair(read, write)


def pooled(settings: Settings, spec: ModelSpec) -> ModelSpec:
    """Refuse poolers of another width or activation, and heads that a published class does not have."""
    settings.require("type_vocab_size", 0)
    settings.require("pooler_hidden_act", "gelu")
    settings.require("pooler_hidden_size", spec.stack.d_model)
    return spec


POOLED = Pair(pooled, lambda spec: {"pooler_hidden_size": spec.stack.d_model})


def outside_layers(spec: ModelSpec) -> Iterator[Link]:
    """The embedding's norm and the table of distances."""
    table = one(spec.stack, RelativeTableSpec, TABLE).shared
    yield link("stack.embedding.norm", "embeddings.LayerNorm")
    yield link(f"shared.{table}", "encoder.rel_embeddings")
    yield link(f"shared.{table}.norm", "encoder.LayerNorm")


def links(spec: ModelSpec) -> Iterator[Link]:
    """The encoder's modules, but for queries, keys and values."""
    yield from outside_layers(spec)
    yield from of_layers(spec.stack, "encoder.layer", LAYER | OWN)


def queries_keys_and_values(spec: ModelSpec) -> Iterator[TensorRow]:
    """Their rows: one matrix of [q‖k‖v] for each head, and two biases."""
    groups = one(spec.stack, GQASpec, "multi-head attention").n_heads
    for i in range(spec.n_layers):
        ours, theirs = f"stack.blocks.{i}.sublayers.{PROJECTION}", f"encoder.layer.{i}.attention.self"
        yield fused(tuple(f"{ours}.{x}.weight" for x in "qkv"), f"{theirs}.in_proj.weight", groups=groups)
        yield from (same(f"{ours}.{x}.bias", f"{theirs}.{x}_bias") for x in "qv")


LM, OLD = "lm_predictions.lm_head", "cls.predictions"
ENDS = ("weight", "bias")
TWINS = {  # the same head under two names: `legacy` chooses
    "deberta.embeddings.word_embeddings.weight": (f"{OLD}.decoder.weight",),
    f"{LM}.bias": (f"{OLD}.bias", f"{OLD}.decoder.bias"),
    **{f"{LM}.dense.{end}": (f"{OLD}.transform.dense.{end}",) for end in ENDS},
    **{f"{LM}.LayerNorm.{end}": (f"{OLD}.transform.LayerNorm.{end}",) for end in ENDS},
}
REPLACED = {
    "transform.0": "mask_predictions.dense",
    "n": "mask_predictions.LayerNorm",
    "": "mask_predictions.classifier",
}
IN_FILES = ("embeddings.position_ids", "embeddings.position_embeddings.weight")  # of the decoder used in pretraining


def heads(name: str) -> HeadNames:
    """The heads of the classes whose names begin with `name`."""
    return usual_classes(
        name,
        "deberta.",
        {
            "mlm": words(f"{LM}.dense", f"{LM}.LayerNorm", LM, of_feed_forwards),
            "classes": row_labels("pooler.dense", "classifier", lambda spec: GELU()),
            **LABELLED,
            "rtd": Heading(lambda spec, n: replaced(), REPLACED),  # no class has it, files of v3 do
        },
    )


DEBERTA = encoder_family(
    "deberta",
    deberta(n_layers=1, d_model=8, n_heads=1),
    (*SIZES, eps(1e-7), relative(), POOLED),
    heads("Deberta"),
    links,
    further=queries_keys_and_values,
    twins=TWINS,
    buffers=IN_FILES,
    ignored=("legacy",),
)

CONVOLUTION = "stack.blocks.0.sublayers.2"


def distances() -> Pair:
    """The buckets of distances, their norm, and whether they are projected as tokens are."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        buckets = settings.take("position_buckets", int, -1)
        kinds = {part.strip() for part in settings.take("norm_rel_ebd", str, "none").lower().split("|")}
        if kinds - {"none", "layer_norm"}:
            raise settings.refusal("norm_rel_ebd", "is not computed here; only 'none' or 'layer_norm' is")
        norm = one(spec, LayerNormSpec, "layer norm") if "layer_norm" in kinds else None
        spec = changed(spec, RelativeTableSpec, n_buckets=Count(buckets) if buckets > 0 else None, norm=norm)
        own = None if settings.take("share_att_key", bool, False) else LinearSpec(bias=True)
        spec = changed(spec, ContentToPositionSpec, projection=own)
        return changed(spec, PositionToContentSpec, projection=own)

    def write(spec: ModelSpec) -> dict[str, Any]:
        table = one(spec, RelativeTableSpec, TABLE)
        return {
            "position_buckets": table.n_buckets or -1,
            "norm_rel_ebd": "layer_norm" if table.norm else "none",
            "share_att_key": one(spec, ContentToPositionSpec, "content to position").projection is None,
        }

    return Pair(read, write)


def convolution() -> Pair:
    """The convolution beside the first layer."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        size, activation = settings.take("conv_kernel_size", int, 0), settings.activation("conv_act", "tanh")
        settings.require("conv_groups", 1)
        if size > 0 and size % 2 == 0:
            raise settings.refusal("conv_kernel_size", "must be odd: as many tokens before as after")
        if size < 1:
            return spec
        norm = one(spec, LayerNormSpec, "layer norm")
        return changed(convolved(spec, size, activation), LayerNormSpec, eps=norm.eps)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = next((part for part in spec.stack.nested() if isinstance(part, ConvolutionSpec)), None)
        if found is None:
            return {}
        return {"conv_kernel_size": found.size, "conv_act": spelling(found.activation) or "tanh", "conv_groups": 1}

    return Pair(read, write)


def links_of_v2(spec: ModelSpec) -> Iterator[Link]:
    """The encoder's modules."""
    names = (("q", "query"), ("k", "key"), ("v", "value"))
    layer = LAYER | {f"{PROJECTION}.{ours}": f"attention.self.{theirs}_proj" for ours, theirs in names}
    own = {f"{SCORES}.{i}.projection": f"attention.self.pos_{x}_proj" for i, x in enumerate(("key", "query"))}
    yield from outside_layers(spec)
    yield from of_layers(spec.stack, "encoder.layer", layer | own)
    yield link(f"{CONVOLUTION}.branches.0.mixer", "encoder.conv.conv")
    yield link(f"{CONVOLUTION}.norm_sum", "encoder.conv.LayerNorm")


DEBERTA_V2 = encoder_family(
    "deberta-v2",
    deberta_v2(n_layers=1, d_model=8, n_heads=1),
    (*SIZES, eps(1e-7), relative(), distances(), convolution(), POOLED),
    heads("DebertaV2"),
    links_of_v2,
    twins=TWINS,
    buffers=IN_FILES,
    ignored=("legacy",),
)
