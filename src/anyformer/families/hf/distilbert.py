"""DistilBERT to and from transformers' DistilBertModel and the classes that put heads on it."""

from __future__ import annotations

from anyformer.families.bert import bert
from anyformer.families.hf import table
from anyformer.families.hf.encoder import encoder_family, laid_out, n_positions
from anyformer.families.hf.headings import LABELLED, of_feed_forwards, row_labels, usual_classes, words
from anyformer.layers import FeedForwardSpec, GQASpec, ReLU
from anyformer.spec import StackSpec

LAYER = {
    **{f"{table.PROJECTION}.{x}": f"attention.{x}_lin" for x in "qkv"},
    f"{table.PROJECTION}.o": "attention.out_lin",
    "0.norm_sum": "sa_layer_norm",
    f"{table.FEED}.up": "ffn.lin1",
    f"{table.FEED}.down": "ffn.lin2",
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
        table.VOCABULARY,
        table.at("dim", int, StackSpec, "d_model"),
        table.at("hidden_dim", int, FeedForwardSpec, "d_ff"),
        table.at("n_heads", int, GQASpec, "n_heads"),
        table.EVEN,
        table.activation("activation", "gelu", FeedForwardSpec),
        table.starts(),
        table.layers("n_layers"),
        n_positions(),
    ),
    HEADS,
    laid_out(LAYER, terms=("position",), layer="transformer.layer"),
    twins={"distilbert.embeddings.word_embeddings.weight": ("vocab_projector.weight",)},
    ignored=("sinusoidal_pos_embds", "tie_weights_"),  # how the table of positions starts; an old word for tied
)
