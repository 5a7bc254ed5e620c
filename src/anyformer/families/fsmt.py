"""The models of fairseq for WMT19: a big Transformer, with a vocabulary for each side. Ng et al. 2019, arXiv:1907.06616."""

from __future__ import annotations

from anyformer.families.bart import NORM
from anyformer.families.compose import changed, untied
from anyformer.families.lineage import Origin, Preset
from anyformer.families.transformer import ROOT, two_stacks
from anyformer.layers import ReLU, SinusoidSpec
from anyformer.spec import ModelSpec, TableSpec, Vocab

# The first token's position is the one after the padding's id.
POSITIONS = SinusoidSpec(layout="concatenated", frequencies="half-1", start=2)


def fsmt(
    *,
    d_model: int,
    layers: tuple[int, int],
    n_heads: tuple[int, int],
    d_ff: tuple[int, int],
    vocab_sizes: tuple[int, int],
    tied: bool,
) -> ModelSpec:
    """Encoder and decoder, branches normed behind, on one table of tokens if `tied`, or on one each and one of the head's.

    Of each pair of sizes the encoder's comes first.
    """
    sizes = {"d_model": d_model, "layers": layers, "n_heads": n_heads, "d_ff": d_ff}
    plain = {"positions": (POSITIONS,), "token_scale": ROOT, "context": 1024}
    spec = two_stacks(**sizes, vocab_size=vocab_sizes[1], activation=ReLU(), norm=NORM, **plain)
    if tied:
        return spec
    apart = untied(spec)
    return apart.but(encoder=apart.encoder and changed(apart.encoder, TableSpec, rows=Vocab(vocab_sizes[0])))


def big(vocab_size: int) -> ModelSpec:
    """Six layers of 1,024, an encoder with wide feed-forwards, and one vocabulary for both languages."""
    sizes = {"d_model": 1024, "layers": (6, 6), "n_heads": (16, 16), "d_ff": (8192, 4096)}
    return fsmt(**sizes, vocab_sizes=(vocab_size, vocab_size), tied=True)


FSMT = Origin("fsmt", "transformer", 2019, "arXiv:1907.06616, section 3.1").lineage(
    "a vocabulary for each side where the scripts differ, the encoder's feed-forwards of 8,192",
    Preset("wmt19-en-de", big(42_024), alias="fsmt"),
    sizes="Ng et al. 2019, arXiv:1907.06616, and the released configuration, from memory",
    tokenizer="byte-pair encoding, about 42,000, of both languages",
)
