"""MPNet to and from transformers' MPNetModel and the classes that put heads on it.

Whatever its configuration says, the class tells 32 buckets apart, the last from 128 tokens on, and 1 is the padding's id.
"""

from __future__ import annotations

from anyformer.families.hf import table
from anyformer.families.hf.bert import LAYER, roberta_heads
from anyformer.families.hf.encoder import SIZES, encoder_family, laid_out, n_positions
from anyformer.families.mpnet import mpnet

ATTENTION = {f"{table.PROJECTION}.{x}": f"attention.attn.{x}" for x in "qkvo"} | {"0.norm_sum": "attention.LayerNorm"}
HEADS = roberta_heads("MPNet", "mpnet.")
MPNET = encoder_family(
    "mpnet",
    mpnet(1, 8, 1),
    (
        *SIZES,
        table.eps(1e-12),
        table.only(relative_attention_num_buckets=32, pad_token_id=1),
        n_positions(offset_by_padding=True),
    ),
    HEADS,
    laid_out(
        {**LAYER, **ATTENTION}, terms=("position",), outside={"shared.buckets": "encoder.relative_attention_bias"}
    ),
)
