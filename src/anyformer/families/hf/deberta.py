"""DeBERTa v1, v2 and v3 to and from transformers' DebertaModel and DebertaV2Model and the classes that put heads on them."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed
from anyformer.families.deberta import convolved, deberta, deberta_v2
from anyformer.families.electra import replaced
from anyformer.families.hf import encoder, headings
from anyformer.families.hf.encoder import SIZES, Links, encoder_family
from anyformer.families.hf.layout import Laid, Modules, Theirs, within
from anyformer.families.hf.mapping import one
from anyformer.families.hf.settings import Settings, spelling
from anyformer.families.hf.table import FEED, PROJECTION, Pair, at, choice, eps, fixed, only
from anyformer.layers import (
    GELU,
    ContentToPositionSpec,
    ConvolutionSpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    PositionToContentSpec,
    RelativeTableSpec,
)
from anyformer.spec import Count, EmbeddingSpec, Length, ModelSpec

SCORES = "0.branches.0.mixer.scores"
LAYER = {
    f"{PROJECTION}.o": "attention.output.dense",
    "0.norm_sum": "attention.output.LayerNorm",
    f"{FEED}.up": "intermediate.dense",
    f"{FEED}.down": "output.dense",
    "1.norm_sum": "output.LayerNorm",
}
OF_V1 = {  # one matrix of [q‖k‖v] for each head, and two biases
    tuple(f"{PROJECTION}.{x}.weight" for x in "qkv"): Theirs("in_proj.weight", by="head"),
    **{f"{PROJECTION}.{x}.bias": f"{x}_bias" for x in "qv"},
    f"{SCORES}.0.projection": "pos_proj",
    f"{SCORES}.1.projection": "pos_q_proj",
}
NAMES = ("query", "key", "value")
OF_V2 = {
    **{f"{PROJECTION}.{name[0]}": f"{name}_proj" for name in NAMES},
    f"{SCORES}.0.projection": "pos_key_proj",
    f"{SCORES}.1.projection": "pos_query_proj",
}
CONVOLVED = "stack.blocks.0.sublayers.2"
CONVOLUTION = {f"{CONVOLVED}.branches.0.mixer": "encoder.conv.conv", f"{CONVOLVED}.norm_sum": "encoder.conv.LayerNorm"}


def relative() -> Pair:
    """How far distances are told apart, and whether the input has positions too; the classes' other ways are refused."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        if not settings.take("relative_attention", bool, False):
            raise settings.refusal("relative_attention", "is not computed here; only True is")
        kinds = settings.written("pos_att_type")
        kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or sorted(map(str, kinds)) != ["c2p", "p2c"]:
            raise settings.refusal("pos_att_type", "is not computed here; only ['p2c', 'c2p'] is")
        context = settings.take("max_position_embeddings", int, 512)
        farthest = settings.take("max_relative_positions", int, -1)
        farthest = context if farthest < 1 else farthest
        if settings.take("position_biased_input", bool, True):
            positions = LearnedPositionsSpec(n_positions=Length(context))
            spec = changed(spec, EmbeddingSpec, terms=(*spec.stack.embedding.terms[:1], positions))
        return changed(spec, RelativeTableSpec, farthest=Length(farthest)).but(context=Length(context))

    def write(spec: ModelSpec) -> dict[str, Any]:
        farthest = one(spec, RelativeTableSpec).farthest
        context = spec.context or farthest
        return {
            "relative_attention": True,
            "position_biased_input": len(spec.stack.embedding.terms) > 1,
            "pos_att_type": ["p2c", "c2p"],
            "max_position_embeddings": context,
            "max_relative_positions": -1 if farthest == context else farthest,
            "type_vocab_size": 0,
            "legacy": False,
        }

    return Pair(read, write)


POOLED = (
    only(type_vocab_size=0, pooler_hidden_act="gelu", pooler_hidden_size=lambda spec: spec.stack.d_model),
    fixed(pooler_hidden_size=lambda spec: spec.stack.d_model),
)


def laid_out(modules: Modules) -> Links:
    """The encoder's modules: those of each layer, the embedding's norm and the table of distances."""

    def links(spec: ModelSpec) -> Laid:
        table = f"shared.{one(spec.stack, RelativeTableSpec).shared}"
        outside = {table: "encoder.rel_embeddings", f"{table}.norm": "encoder.LayerNorm", **CONVOLUTION}
        terms = ("position",) if len(spec.stack.embedding.terms) > 1 else ()
        return encoder.laid_out(modules, terms=terms, outside=outside)(spec)

    return links


LM, OLD = "lm_predictions.lm_head", "cls.predictions"
MLM = (  # the same head under two names: `legacy` chooses
    Theirs(f"{LM}.dense", also=(f"{OLD}.transform.dense",)),
    Theirs(f"{LM}.LayerNorm", also=(f"{OLD}.transform.LayerNorm",)),
    Theirs(LM, also=(OLD, f"{OLD}.decoder")),
)
REPLACED = {
    "transform.0": "mask_predictions.dense",
    "n": "mask_predictions.LayerNorm",
    "table": "mask_predictions.classifier",
}
IN_FILES = ("embeddings.position_ids", "embeddings.position_embeddings.weight")  # of the decoder used in pretraining


def heads(name: str) -> headings.HeadNames:
    """The heads of the classes whose names begin with `name`."""
    return headings.usual_classes(
        name,
        "deberta.",
        {
            "mlm": headings.words(*MLM, headings.of_feed_forwards),
            "classes": headings.row_labels("pooler.dense", "classifier", lambda spec: GELU()),
            **headings.LABELLED,
            "rtd": headings.Heading(lambda spec, n: replaced(), REPLACED),  # no class has it, files of v3 do
        },
    )


DEBERTA = encoder_family(
    "deberta",
    deberta(1, 8, 1),
    (*SIZES, eps(1e-7), relative(), *POOLED),
    heads("Deberta"),
    laid_out({**LAYER, **within(OF_V1, theirs="attention.self.")}),
    buffers=IN_FILES,
    ignored=("legacy",),
)


def _read_norm(settings: Settings, spec: ModelSpec) -> ModelSpec:
    kinds = {part.strip() for part in settings.take("norm_rel_ebd", str, "none").lower().split("|")}
    if kinds - {"none", "layer_norm"}:
        raise settings.refusal("norm_rel_ebd", "is not computed here; only 'none' or 'layer_norm' is")
    norm = one(spec, LayerNormSpec) if "layer_norm" in kinds else None
    return changed(spec, RelativeTableSpec, norm=norm)


def _write_norm(spec: ModelSpec) -> dict[str, Any]:
    return {"norm_rel_ebd": "layer_norm" if one(spec, RelativeTableSpec).norm else "none"}


def _projected(part: type[ContentToPositionSpec | PositionToContentSpec]) -> Pair:
    """Whether distances are projected as tokens are, or by a matrix of their own."""
    return choice("share_att_key", part, "projection", {True: None, False: LinearSpec(bias=True)}, False)


# The buckets of distances, their norm and their projections.
DISTANCES = (
    Pair(_read_norm, _write_norm),
    at(
        "position_buckets",
        int,
        RelativeTableSpec,
        "n_buckets",
        default=-1,
        into=lambda n: Count(n) if n > 0 else None,
        out=lambda n: n or -1,
    ),
    _projected(PositionToContentSpec),
    _projected(ContentToPositionSpec),
)


def convolution() -> Pair:
    """The convolution beside the first layer."""

    def read(settings: Settings, spec: ModelSpec) -> ModelSpec:
        size, activation = settings.take("conv_kernel_size", int, 0), settings.activation("conv_act", "tanh")
        settings.require("conv_groups", 1)
        if size > 0 and size % 2 == 0:
            raise settings.refusal("conv_kernel_size", "must be odd: as many tokens before as after")
        if size < 1:
            return spec
        norm = one(spec, LayerNormSpec)
        return changed(convolved(spec, size, activation), LayerNormSpec, eps=norm.eps)

    def write(spec: ModelSpec) -> dict[str, Any]:
        found = next(spec.stack.nested(ConvolutionSpec), None)
        if found is None:
            return {}
        return {"conv_kernel_size": found.size, "conv_act": spelling(found.activation) or "tanh", "conv_groups": 1}

    return Pair(read, write)


DEBERTA_V2 = encoder_family(
    "deberta-v2",
    deberta_v2(1, 8, 1),
    (*SIZES, eps(1e-7), relative(), *DISTANCES, convolution(), *POOLED),
    heads("DebertaV2"),
    laid_out({**LAYER, **within(OF_V2, theirs="attention.self.")}),
    buffers=IN_FILES,
    ignored=("legacy",),
)
