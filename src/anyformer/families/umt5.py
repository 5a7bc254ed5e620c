"""UMT5: Chung et al. 2023, arXiv:2304.09151: mT5 with buckets of each layer's own."""

from __future__ import annotations

from functools import partial

from anyformer.families.lineage import Origin, Preset
from anyformer.families.t5 import BASE, ROUNDED, SMALL, XL, XXL, v1_1

umt5 = partial(v1_1, vocab_size=256_384, one_table=False)

UMT5 = Origin("umt5", "mt5", 2023, "arXiv:2304.09151").lineage(
    "a table of distances for each layer, 256,384 tokens of 107 languages",
    Preset("umt5-small", umt5(*SMALL), "300M", ROUNDED.format(306_601_984)),
    Preset("umt5-base", umt5(*BASE), "580M", "mT5's figure; the larger table gives 592,043,520", alias="umt5"),
    Preset("umt5-xl", umt5(*XL), "3.7B", ROUNDED.format(3_768_356_864)),
    Preset("umt5-xxl", umt5(*XXL), "13B"),
    sizes="Chung et al. 2023, arXiv:2304.09151, and the released configurations, from memory; sizes as T5.1.1's",
    tokenizer="SentencePiece with byte fallback, 256,300 pieces (from memory); the table has 256,384 rows",
)
