"""BERT as an encoder and as a decoder of its own to and from transformers' BertGenerationEncoder and BertGenerationDecoder."""

from __future__ import annotations

from anyformer.families.bert import bert
from anyformer.families.heads import words_of_table
from anyformer.families.hf.bert import LAYER
from anyformer.families.hf.encoder import SIZES, causal, encoder_family, eps, laid_out, n_positions
from anyformer.families.hf.headings import Heading, HeadNames
from anyformer.families.hf.layout import Theirs

HEADS = HeadNames(
    "bert.",
    "BertGenerationEncoder",
    {"lm": Heading(lambda spec, n: words_of_table(spec), {"": Theirs("lm_head", also=("lm_head.decoder",))})},
    {"BertGenerationDecoder": ("lm",), "BertGenerationEncoder": ()},
)
BERT_GENERATION = encoder_family(
    "bert-generation",
    bert(n_layers=1, d_model=8, n_heads=1, n_segments=0),
    (*SIZES, eps(1e-12), n_positions(), causal("is_decoder")),
    HEADS,
    laid_out(LAYER, terms=("position",)),
    also=("lm_head.decoder",),
    decoders=True,
)
