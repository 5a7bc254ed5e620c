"""BERT and RoBERTa with norms before their branches to and from transformers' classes of three names.

MegatronBertModel, XLMRobertaXLModel and RobertaPreLayerNormModel, and those that put heads on them.
"""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.bert import BRANCHES, bert_heads, roberta_heads
from anyformer.families.hf.encoder import SEGMENTS, SIZES, encoder_family, laid_out, n_positions
from anyformer.families.prenorm_bert import megatron_bert, prenorm_roberta, xlm_roberta_xl
from anyformer.layers import SegmentsSpec

MEGATRON_HEADS = bert_heads("MegatronBert", "bert.", "ForMaskedLM")
MEGATRON_BERT = encoder_family(
    "megatron-bert",
    megatron_bert(1, 8, 1),
    (*SIZES, SEGMENTS, table.eps(1e-12), n_positions()),
    MEGATRON_HEADS,
    laid_out({"0.norm_in": "attention.ln", "1.norm_in": "ln", **BRANCHES}, outside={"stack.norm": "encoder.ln"}),
)


XL_HEADS = roberta_heads("XLMRobertaXL")
XLM_ROBERTA_XL = encoder_family(
    "xlm-roberta-xl",
    xlm_roberta_xl(1, 8, 1),
    (
        *SIZES,
        table.at("type_vocab_size", int, SegmentsSpec, "n_segments", default=1),
        table.eps(1e-5),
        n_positions(offset_by_padding=True, default=514),
    ),
    XL_HEADS,
    laid_out(
        {"0.norm_in": "attention.self_attn_layer_norm", "1.norm_in": "LayerNorm", **BRANCHES},
        outside={"stack.norm": "encoder.LayerNorm"},
    ),
)
PRENORM_HEADS = roberta_heads("RobertaPreLayerNorm", "roberta_prelayernorm.")
ROBERTA_PRENORM = encoder_family(
    "roberta-prelayernorm",
    prenorm_roberta(1, 8, 1),
    (*SIZES, SEGMENTS, table.eps(1e-12), n_positions(offset_by_padding=True)),
    PRENORM_HEADS,
    laid_out(
        {"0.norm_in": "attention.LayerNorm", "1.norm_in": "intermediate.LayerNorm", **BRANCHES},
        outside={"stack.norm": "LayerNorm"},
    ),
)
