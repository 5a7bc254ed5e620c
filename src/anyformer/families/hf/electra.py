"""ELECTRA to and from transformers' ElectraModel and the classes that put heads on it, generator and discriminator."""

from __future__ import annotations

from anyformer.families.electra import electra, replaced
from anyformer.families.hf.albert import width
from anyformer.families.hf.bert import LAYER
from anyformer.families.hf.encoder import SEGMENTS, SIZES, encoder_family, eps, laid_out, n_positions
from anyformer.families.hf.headings import (
    LABELLED,
    TWO_LAYERS,
    Heading,
    of_feed_forwards,
    row_labels,
    usual_classes,
    words,
)
from anyformer.layers import GELU, LinearSpec
from anyformer.spec import HeadSpec, ModelSpec

RTD, WORDS = "discriminator_predictions", "generator_predictions"


def _replaced(spec: ModelSpec, n: int) -> HeadSpec:
    return replaced().but(transform=(LinearSpec(bias=True), of_feed_forwards(spec)))


HEADS = usual_classes(
    "Electra",
    "electra.",
    {
        "rtd": Heading(
            _replaced,
            {"transform.0": f"{RTD}.dense", "table": f"{RTD}.dense_prediction", "": f"{RTD}.dense_prediction"},
        ),
        # GELU, whatever hidden_act says.
        "mlm": words(f"{WORDS}.dense", f"{WORDS}.LayerNorm", "generator_lm_head"),
        "classes": row_labels(*TWO_LAYERS, lambda spec: GELU()),
        **LABELLED,
    },
    {"ForPreTraining": ("rtd",)},
)
ELECTRA = encoder_family(
    "electra",
    electra(n_layers=1, d_model=8, n_heads=1, width=4),
    (*SIZES, width(128, always=False), SEGMENTS, eps(1e-12), n_positions()),
    HEADS,
    laid_out(LAYER, outside={"stack.embedding.projection": "embeddings_project"}),
    twins={"electra.embeddings.word_embeddings.weight": ("generator_lm_head.weight",)},
    ignored=("summary_type", "summary_use_proj", "summary_activation"),
)
