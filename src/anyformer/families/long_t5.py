"""LongT5: Guo et al. 2021, arXiv:2112.07916: T5 1.1 whose encoder sees a window, and sums of blocks."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.t5 import BASE, LARGE, ROUNDED, TOKENIZER, XL, v1_1
from anyformer.layers import AttentionSpec, RelativeBucketsSpec, SymmetricWindow, TransientGlobalSpec
from anyformer.spec import ModelSpec, Window

NEAR = SymmetricWindow(radius=Window(127))


def local(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """Local attention (section 3.1.1): the encoder's tokens see 127 to each side, and their own."""
    model = v1_1(n_layers, d_model, n_heads, d_ff)
    return model.but(encoder=model.encoder and changed(model.encoder, AttentionSpec, mask=NEAR), context=4096)


def blocks_of(every: int) -> TransientGlobalSpec:
    """Blocks whose distances all layers tell apart by one table."""
    buckets = RelativeBucketsSpec(bidirectional=True, shared="encoder_block_buckets")
    return TransientGlobalSpec(every=Window(every), scores=buckets)


def transient_global(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """Local attention, beside which all tokens see the sums of blocks of 16 (section 3.1.2)."""
    model = local(n_layers, d_model, n_heads, d_ff)
    return model.but(encoder=model.encoder and changed(model.encoder, AttentionSpec, transient=blocks_of(16)))


UNTIED = "T5's figure, which is rounded; the head's own table gives {:,}"
SIZES = "Guo et al. 2021, arXiv:2112.07916, section 4, and the released configurations, from memory; sizes as T5.1.1's"
LOCAL = Origin("long-t5-local", "t5-v1.1", 2021, "arXiv:2112.07916, section 3.1.1").lineage(
    "an encoder whose tokens see 127 to each side",
    Preset("long-t5-local-base", local(*BASE), "220M", UNTIED.format(247_577_856), alias="long-t5-local"),
    Preset("long-t5-local-large", local(*LARGE), "770M", UNTIED.format(783_150_080)),
    known="long-t5-local-base",
    family="long-t5",
    sizes=SIZES,
    tokenizer=TOKENIZER,
)
TRANSIENT_GLOBAL = Origin("long-t5-tglobal", "long-t5-local", 2021, "arXiv:2112.07916, section 3.1.2").lineage(
    "sums of blocks of 16 tokens, which all see",
    Preset("long-t5-tglobal-base", transient_global(*BASE), "220M", UNTIED.format(247_587_456), alias="long-t5"),
    Preset("long-t5-tglobal-large", transient_global(*LARGE), "770M", UNTIED.format(783_175_168)),
    Preset("long-t5-tglobal-xl", transient_global(*XL), "3B", ROUNDED.format(2_849_807_360)),
    known="long-t5-tglobal-base",
    family="long-t5",
    sizes=SIZES,
    tokenizer=TOKENIZER,
)
