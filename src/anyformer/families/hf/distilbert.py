"""DistilBERT to and from transformers' DistilBertModel and the classes that put heads on it."""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.families.bert import bert
from anyformer.families.heads import masked_words, row_classes
from anyformer.families.hf.bert import FEED, PROJECTION, embeddings, in_feed_forward
from anyformer.families.hf.encoder import (
    SPAN,
    TOKEN_CLASSES,
    Heading,
    HeadNames,
    encoder_family,
    n_positions,
    of_layers,
    starts,
)
from anyformer.families.hf.layout import Link
from anyformer.families.hf.template import EVEN, VOCABULARY, activation, at, layers
from anyformer.layers import FeedForwardSpec, GQASpec, ReLU
from anyformer.spec import ModelSpec, StackSpec

LAYER = {
    **{f"{PROJECTION}.{x}": f"attention.{x}_lin" for x in "qkv"},
    f"{PROJECTION}.o": "attention.out_lin",
    "0.norm_sum": "sa_layer_norm",
    f"{FEED}.up": "ffn.lin1",
    f"{FEED}.down": "ffn.lin2",
    "1.norm_sum": "output_layer_norm",
}


def links(spec: ModelSpec) -> Iterator[Link]:
    """The encoder's modules."""
    yield from embeddings("position")
    yield from of_layers(spec, "transformer.layer", LAYER)


HEADS = HeadNames(
    "distilbert.",
    "DistilBertModel",
    {
        "mlm": Heading(
            lambda spec, n: masked_words(spec, in_feed_forward(spec)),
            {"transform.0": "vocab_transform", "transform.2": "vocab_layer_norm", "": "vocab_projector"},
        ),
        "classes": Heading(
            lambda spec, n: row_classes(n, activation=ReLU()),
            {"transform.0": "pre_classifier", "table": "classifier", "": "classifier"},
            labelled=True,
        ),
        "token_classes": TOKEN_CLASSES,
        "span": SPAN,
    },
    {
        "DistilBertForMaskedLM": ("mlm",),
        "DistilBertModel": (),
        "DistilBertForSequenceClassification": ("classes",),
        "DistilBertForTokenClassification": ("token_classes",),
        "DistilBertForQuestionAnswering": ("span",),
    },
)
DISTILBERT = encoder_family(
    "distilbert",
    bert(n_layers=1, d_model=8, n_heads=1, n_segments=0),
    (
        VOCABULARY,
        at("dim", int, StackSpec, "d_model"),
        at("hidden_dim", int, FeedForwardSpec, "d_ff"),
        at("n_heads", int, GQASpec, "n_heads"),
        EVEN,
        activation("activation", "gelu", FeedForwardSpec),
        starts(),
        layers("n_layers"),
        n_positions(),
    ),
    HEADS,
    links,
    twins={"distilbert.embeddings.word_embeddings.weight": ("vocab_projector.weight",)},
    ignored=("sinusoidal_pos_embds", "tie_weights_"),  # how the table of positions starts; an old word for tied
)
