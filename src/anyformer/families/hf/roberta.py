"""RoBERTa to and from transformers' RobertaModel and the classes that put heads on it."""

from __future__ import annotations

from anyformer.families.bert import bert
from anyformer.families.hf.bert import LAYER
from anyformer.families.hf.encoder import SEGMENTS, SIZES, copies, encoder_family, eps, laid_out, n_positions
from anyformer.families.hf.headings import LABELLED, TWO_LAYERS, pooled, row_labels, usual_classes, words

MLM = words("lm_head.dense", "lm_head.layer_norm", "lm_head")  # GELU, whatever hidden_act says
HEADS = usual_classes(
    "Roberta",
    "roberta.",
    {"mlm": MLM, "pooler": pooled("roberta.pooler.dense"), "classes": row_labels(*TWO_LAYERS), **LABELLED},
)
ROBERTA = encoder_family(
    "roberta",
    bert(n_layers=1, d_model=8, n_heads=1, n_segments=1),
    (*SIZES, SEGMENTS, eps(1e-12), n_positions(offset_by_padding=True)),
    HEADS,
    laid_out(LAYER),
    twins=copies("roberta.embeddings.word_embeddings", "lm_head"),
)
