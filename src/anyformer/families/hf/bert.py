"""BERT, RoBERTa and DistilBERT to and from transformers' BertModel and its like and the classes that put heads on them."""

from __future__ import annotations

from anyformer.families.bert import bert
from anyformer.families.hf import table
from anyformer.families.hf.encoder import SEGMENTS, SIZES, copies, encoder_family, eps, laid_out, n_positions
from anyformer.families.hf.headings import (
    LABELLED,
    TWO_LAYERS,
    of_feed_forwards,
    of_pairs,
    pooled,
    row_labels,
    usual_classes,
    words,
)
from anyformer.layers import FeedForwardSpec, GQASpec, ReLU
from anyformer.spec import StackSpec

LAYER = {
    f"{table.PROJECTION}.q": "attention.self.query",
    f"{table.PROJECTION}.k": "attention.self.key",
    f"{table.PROJECTION}.v": "attention.self.value",
    f"{table.PROJECTION}.o": "attention.output.dense",
    "0.norm_sum": "attention.output.LayerNorm",
    f"{table.FEED}.up": "intermediate.dense",
    f"{table.FEED}.down": "output.dense",
    "1.norm_sum": "output.LayerNorm",
}
POOLER, NEXT, WORDS = "bert.pooler.dense", "cls.seq_relationship", "cls.predictions"
MLM = words(f"{WORDS}.transform.dense", f"{WORDS}.transform.LayerNorm", WORDS, of_feed_forwards)
HEADS = usual_classes(
    "Bert",
    "bert.",
    {
        "mlm": MLM,
        "nsp": of_pairs("nsp", POOLER, NEXT),
        "pooler": pooled(POOLER),
        "classes": row_labels(POOLER, "classifier"),
        **LABELLED,
    },
    {"ForPreTraining": ("mlm", "nsp"), "ForMaskedLM": ("mlm",), "ForNextSentencePrediction": ("nsp",)},
)
# Some say how a pooler that is always this one is made.
IGNORED = (
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
)
TWINS = copies("bert.embeddings.word_embeddings", WORDS)
BERT = encoder_family(
    "bert",
    bert(n_layers=1, d_model=8, n_heads=1),
    (*SIZES, SEGMENTS, eps(1e-12), n_positions()),
    HEADS,
    laid_out(LAYER),
    twins=TWINS,
    ignored=(*IGNORED, "directionality"),
)
OF_ROBERTA = words("lm_head.dense", "lm_head.layer_norm", "lm_head")  # GELU, whatever hidden_act says
ROBERTA_HEADS = usual_classes(
    "Roberta",
    "roberta.",
    {"mlm": OF_ROBERTA, "pooler": pooled("roberta.pooler.dense"), "classes": row_labels(*TWO_LAYERS), **LABELLED},
)
ROBERTA = encoder_family(
    "roberta",
    bert(n_layers=1, d_model=8, n_heads=1, n_segments=1),
    (*SIZES, SEGMENTS, eps(1e-12), n_positions(offset_by_padding=True)),
    ROBERTA_HEADS,
    laid_out(LAYER),
    twins=copies("roberta.embeddings.word_embeddings", "lm_head"),
)

LAYER_OF_DISTILBERT = {
    **{f"{table.PROJECTION}.{x}": f"attention.{x}_lin" for x in "qkv"},
    f"{table.PROJECTION}.o": "attention.out_lin",
    "0.norm_sum": "sa_layer_norm",
    f"{table.FEED}.up": "ffn.lin1",
    f"{table.FEED}.down": "ffn.lin2",
    "1.norm_sum": "output_layer_norm",
}
DISTILBERT_HEADS = usual_classes(
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
    DISTILBERT_HEADS,
    laid_out(LAYER_OF_DISTILBERT, terms=("position",), layer="transformer.layer"),
    twins={"distilbert.embeddings.word_embeddings.weight": ("vocab_projector.weight",)},
    ignored=("sinusoidal_pos_embds", "tie_weights_"),  # how the table of positions starts; an old word for tied
)
