"""RoBERTa to and from transformers' RobertaModel and the classes that put heads on it."""

from __future__ import annotations

from anyformer.families.bert import bert
from anyformer.families.heads import masked_words, pooler, row_classes
from anyformer.families.hf.bert import links
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
)

HEADS = HeadNames(
    "roberta.",
    "RobertaModel",
    {
        "mlm": Heading(
            lambda spec, n: masked_words(spec),  # GELU, whatever hidden_act says
            {"transform.0": "lm_head.dense", "transform.2": "lm_head.layer_norm", "": "lm_head"},
        ),
        "pooler": Heading(lambda spec, n: pooler(), {"transform.0": "roberta.pooler.dense"}),
        "classes": Heading(
            lambda spec, n: row_classes(n),
            CLASSIFIER_OF_TWO,
            labelled=True,
        ),
        "token_classes": TOKEN_CLASSES,
        "span": SPAN,
    },
    {
        "RobertaForMaskedLM": ("mlm",),
        "RobertaModel": ("pooler",),
        "RobertaForSequenceClassification": ("classes",),
        "RobertaForTokenClassification": ("token_classes",),
        "RobertaForQuestionAnswering": ("span",),
    },
)
ROBERTA = encoder_family(
    "roberta",
    bert(n_layers=1, d_model=8, n_heads=1, n_segments=1),
    (*SIZES, SEGMENTS, eps(1e-12), n_positions(offset_by_padding=True)),
    HEADS,
    links,
    twins={
        "roberta.embeddings.word_embeddings.weight": ("lm_head.decoder.weight",),
        "lm_head.bias": ("lm_head.decoder.bias",),
    },
)
