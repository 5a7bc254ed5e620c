"""DeBERTa v1 to and from transformers' DebertaModel and the classes that put heads on it, and what v2's share with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.deberta import deberta
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
from anyformer.families.hf.settings import Settings
from anyformer.families.hf.table import FEED, PROJECTION, Pair
from anyformer.layers import GELU, GQASpec, RelativeTableSpec
from anyformer.spec import Length, ModelSpec

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
