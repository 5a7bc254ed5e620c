"""DistilBERT to and from transformers' DistilBertModel and the classes that put heads on it."""

from __future__ import annotations

from anyformer.families.bert import bert
from anyformer.families.hf.bert import FEED, PROJECTION
from anyformer.families.hf.encoder import encoder_family, laid_out, n_positions, starts
from anyformer.families.hf.headings import LABELLED, of_feed_forwards, row_labels, usual_classes, words
from anyformer.families.hf.template import EVEN, VOCABULARY, activation, at, layers
from anyformer.layers import FeedForwardSpec, GQASpec, ReLU
from anyformer.spec import StackSpec

LAYER = {
    **{f"{PROJECTION}.{x}": f"attention.{x}_lin" for x in "qkv"},
    f"{PROJECTION}.o": "attention.out_lin",
    "0.norm_sum": "sa_layer_norm",
    f"{FEED}.up": "ffn.lin1",
    f"{FEED}.down": "ffn.lin2",
    "1.norm_sum": "output_layer_norm",
}
HEADS = usual_classes(
    "DistilBert",
    "distilbert.",
    {
        "mlm": words("vocab_transform", "vocab_layer_norm", "vocab_projector", of_feed_forwards),
        "classes": row_labels("pre_classifier", "classifier", lambda spec: ReLU()),
        **LABELLED,
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
    laid_out(LAYER, terms=("position",), layer="transformer.layer"),
    twins={"distilbert.embeddings.word_embeddings.weight": ("vocab_projector.weight",)},
    ignored=("sinusoidal_pos_embds", "tie_weights_"),  # how the table of positions starts; an old word for tied
)
