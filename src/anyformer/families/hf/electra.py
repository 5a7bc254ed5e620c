"""ELECTRA to and from transformers' ElectraModel and the classes that put heads on it, generator and discriminator."""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.families.electra import electra, replaced
from anyformer.families.heads import masked_words, row_classes
from anyformer.families.hf.albert import width
from anyformer.families.hf.bert import LAYER, embeddings, in_feed_forward
from anyformer.families.hf.encoder import (
    CLASSIFIER_OF_TWO,
    SEGMENTS,
    SIZES,
    SPAN,
    TOKEN_CLASSES,
    Heading,
    HeadNames,
    encoder_family,
    eps,
    n_positions,
    of_layers,
)
from anyformer.families.hf.layout import Link, link
from anyformer.layers import GELU, LinearSpec
from anyformer.spec import HeadSpec, ModelSpec


def links(spec: ModelSpec) -> Iterator[Link]:
    """The encoder's modules."""
    yield from embeddings("position", "token_type")
    yield link("stack.embedding.projection", "embeddings_project")
    yield from of_layers(spec, "encoder.layer", LAYER)


def _replaced(spec: ModelSpec, n: int) -> HeadSpec:
    return replaced().but(transform=(LinearSpec(bias=True), in_feed_forward(spec)))


HEADS = HeadNames(
    "electra.",
    "ElectraModel",
    {
        "rtd": Heading(
            _replaced,
            {
                "transform.0": "discriminator_predictions.dense",
                "table": "discriminator_predictions.dense_prediction",
                "": "discriminator_predictions.dense_prediction",
            },
        ),
        "mlm": Heading(
            lambda spec, n: masked_words(spec),  # GELU, whatever hidden_act says
            {
                "transform.0": "generator_predictions.dense",
                "transform.2": "generator_predictions.LayerNorm",
                "": "generator_lm_head",
            },
        ),
        "classes": Heading(
            lambda spec, n: row_classes(n, activation=GELU()),
            CLASSIFIER_OF_TWO,
            labelled=True,
        ),
        "token_classes": TOKEN_CLASSES,
        "span": SPAN,
    },
    {
        "ElectraForPreTraining": ("rtd",),
        "ElectraForMaskedLM": ("mlm",),
        "ElectraModel": (),
        "ElectraForSequenceClassification": ("classes",),
        "ElectraForTokenClassification": ("token_classes",),
        "ElectraForQuestionAnswering": ("span",),
    },
)
ELECTRA = encoder_family(
    "electra",
    electra(n_layers=1, d_model=8, n_heads=1, width=4),
    (*SIZES, width(128, always=False), SEGMENTS, eps(1e-12), n_positions()),
    HEADS,
    links,
    twins={"electra.embeddings.word_embeddings.weight": ("generator_lm_head.weight",)},
    ignored=("summary_type", "summary_use_proj", "summary_activation"),
)
