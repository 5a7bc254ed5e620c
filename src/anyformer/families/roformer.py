"""RoFormer, BERT whose queries and keys rotate: Su et al. 2021, arXiv:2104.09864, where rotary positions come from."""

from __future__ import annotations

from functools import partial

from anyformer.families.bert import bert
from anyformer.families.heads import with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import RotarySpec

# Neighbouring features turn together (section 3.4.2).
roformer = partial(bert, vocab_size=50_000, rotary=RotarySpec(layout="interleaved"), context=1536)

ROFORMER = Origin("roformer", "bert", 2021, "arXiv:2104.09864, section 3").lineage(
    "rotary positions for the learned ones, 50,000 tokens of Chinese",
    Preset("roformer-base", with_masked_words(roformer(12, 768, 12)), "124M"),
    sizes="Su et al. 2021, arXiv:2104.09864, section 4.5 (from memory), vocabulary and context as released",
    tokenizer="WordPiece on words, 50,000",
)
