"""MPNet, BERT with T5's buckets of distance beside its learned positions: Song et al. 2020, arXiv:2004.09297."""

from __future__ import annotations

from functools import partial

from anyformer.families.bert import bert
from anyformer.families.compose import changed
from anyformer.families.heads import with_masked_words
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import AttentionSpec, RelativeBucketsSpec
from anyformer.spec import ModelSpec

rows = partial(bert, vocab_size=30_527, n_segments=0, padding=1)


def mpnet(*sizes: int) -> ModelSpec:
    """One table of buckets for all layers, no segments, positions as RoBERTa counts them (sections 2.2 and 3.1)."""
    return changed(rows(*sizes), AttentionSpec, scores=(RelativeBucketsSpec(bidirectional=True, shared="buckets"),))


MPNET = Origin("mpnet", "bert", 2020, "arXiv:2004.09297, section 2.2").lineage(
    "distances in buckets beside learned positions, no segments; masked and permuted words",
    Preset("mpnet-base", with_masked_words(mpnet(12, 768, 12)), "110M", alias="mpnet"),
    sizes="Song et al. 2020, arXiv:2004.09297, section 3.1; the vocabulary as released",
    tokenizer="WordPiece, 30,527",
)
