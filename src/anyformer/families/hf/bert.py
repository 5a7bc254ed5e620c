"""BERT to and from transformers' BertModel and the classes that put heads on it."""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.families.bert import bert
from anyformer.families.heads import masked_words, pooler, row_classes
from anyformer.families.hf.encoder import (
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
from anyformer.layers import ActivationSpec, FeedForwardSpec
from anyformer.spec import ModelSpec

PROJECTION, FEED = "0.branches.0.mixer.projection", "1.branches.0.mixer"
LAYER = {
    f"{PROJECTION}.q": "attention.self.query",
    f"{PROJECTION}.k": "attention.self.key",
    f"{PROJECTION}.v": "attention.self.value",
    f"{PROJECTION}.o": "attention.output.dense",
    "0.norm_sum": "attention.output.LayerNorm",
    f"{FEED}.up": "intermediate.dense",
    f"{FEED}.down": "output.dense",
    "1.norm_sum": "output.LayerNorm",
}
PREDICTIONS = "cls.predictions"
TWINS = {
    "bert.embeddings.word_embeddings.weight": (f"{PREDICTIONS}.decoder.weight",),
    f"{PREDICTIONS}.bias": (f"{PREDICTIONS}.decoder.bias",),
}


def in_feed_forward(spec: ModelSpec) -> ActivationSpec:
    """The activation of the feed-forwards, which hidden_act gives to the head too."""
    return next(value.activation for value in spec.stack.nested() if isinstance(value, FeedForwardSpec))


def embeddings(*terms: str) -> Iterator[Link]:
    """The embedding's tables after the tokens', in the order of its terms, and its norm."""
    yield from (link(f"stack.embedding.terms.{i}", f"embeddings.{name}_embeddings") for i, name in enumerate(terms, 1))
    yield link("stack.embedding.norm", "embeddings.LayerNorm")


def links(spec: ModelSpec) -> Iterator[Link]:
    """The encoder's modules."""
    yield from embeddings("position", "token_type")
    yield from of_layers(spec, "encoder.layer", LAYER)


CLASSIFIER = {"transform.0": "bert.pooler.dense", "table": "classifier", "": "classifier"}
HEADS = HeadNames(
    "bert.",
    "BertModel",
    {
        "mlm": Heading(
            lambda spec, n: masked_words(spec, in_feed_forward(spec)),
            {
                "transform.0": f"{PREDICTIONS}.transform.dense",
                "transform.2": f"{PREDICTIONS}.transform.LayerNorm",
                "": PREDICTIONS,
            },
        ),
        "nsp": Heading(
            lambda spec, n: row_classes(2, "nsp"),
            {"transform.0": "bert.pooler.dense", "table": "cls.seq_relationship", "": "cls.seq_relationship"},
        ),
        "pooler": Heading(lambda spec, n: pooler(), {"transform.0": "bert.pooler.dense"}),
        "classes": Heading(lambda spec, n: row_classes(n), CLASSIFIER, labelled=True),
        "token_classes": TOKEN_CLASSES,
        "span": SPAN,
    },
    {
        "BertForPreTraining": ("mlm", "nsp"),
        "BertForMaskedLM": ("mlm",),
        "BertForNextSentencePrediction": ("nsp",),
        "BertModel": ("pooler",),
        "BertForSequenceClassification": ("classes",),
        "BertForTokenClassification": ("token_classes",),
        "BertForQuestionAnswering": ("span",),
    },
)
# Some say how a pooler that is always this one is made.
POOLER = ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type")
BERT = encoder_family(
    "bert",
    bert(n_layers=1, d_model=8, n_heads=1),
    (*SIZES, SEGMENTS, eps(1e-12), n_positions()),
    HEADS,
    links,
    twins=TWINS,
    ignored=(*POOLER, "directionality"),
)
