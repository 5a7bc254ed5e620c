"""EuroBERT, LLaMA that sees both ways and fills in masked words: Boizard et al. 2025, arXiv:2503.05500."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import AttentionSpec, Everything
from anyformer.spec import HeadSpec, ModelSpec, TableSpec, Vocab

VOCABULARY = 128_256


def masked_table(n: int) -> HeadSpec:
    """The head for masked words that is a table of its own, without a layer before it or a bias."""
    return HeadSpec(name="mlm", table=TableSpec(rows=Vocab(n)))


def eurobert(*sizes: int) -> ModelSpec:
    """LLaMA's layers under no mask, with a head for masked words (arXiv:2503.05500, section 2.1)."""
    model = llama(*sizes, vocab_size=VOCABULARY, eps=1e-5, theta=250_000.0, context=8192)
    return changed(model, AttentionSpec, mask=Everything()).but(heads=(masked_table(VOCABULARY),))


CUT = "{} with the head, which is not tied; the name leaves it out"

EUROBERT = Origin("eurobert", "llama3", 2025, "arXiv:2503.05500, section 2.1").lineage(
    "sees both ways, masked words, grouped queries in the larger, theta 250,000",
    Preset("eurobert-210m", eurobert(12, 768, 12, 3072), "210M", CUT.format("310.3M"), alias="eurobert"),
    Preset("eurobert-610m", eurobert(26, 1152, 18, 4096, 6), "610M", CUT.format("755.6M")),
    Preset("eurobert-2.1b", eurobert(32, 2304, 18, 6144, 6), "2.1B", CUT.format("2.40B")),
    known="eurobert-210m",
    sizes="Boizard et al. 2025, arXiv:2503.05500, table 1, and the released configurations (theta from memory)",
    tokenizer="byte-level BPE (LLaMA 3's), 128,256",
)
