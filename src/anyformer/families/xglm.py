"""Decoders of fairseq, embeddings times √d_model.

BioGPT: Luo et al. 2022, arXiv:2210.10341. XGLM: Lin et al. 2021, arXiv:2112.10668.
"""

from __future__ import annotations

from anyformer.families.compose import attend, changed, feed, language_model, repeat, serial
from anyformer.families.fsmt import POSITIONS
from anyformer.families.lineage import Origin, Preset
from anyformer.families.opt import opt
from anyformer.families.transformer import ROOT
from anyformer.layers import GELU, LayerNormSpec, TokensSpec
from anyformer.spec import ModelSpec


def biogpt(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """OPT's shape with GELU."""
    model = opt(n_layers, d_model, n_heads, vocab_size=42_384, activation=GELU(), context=1024)
    return changed(model, TokensSpec, scale=ROOT)


def xglm(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """Pre-norm decoder with GELU and fairseq's positions."""
    norm = LayerNormSpec(eps=1e-5)
    return language_model(
        256_008,
        d_model,
        repeat(serial(norm, attend(n_heads, bias=True), feed(4 * d_model, GELU())), n_layers),
        norm,
        tied=True,
        positions=(POSITIONS,),
        token_scale=ROOT,
        context=2048,
    )


XGLM = Origin("xglm", "gpt3", 2021, "arXiv:2112.10668, section 2").lineage(
    "sinusoids, embeddings times √d_model, 256,008 tokens of 30 languages",
    Preset("xglm-564m", xglm(24, 1024, 16), "564M"),
    Preset("xglm-7.5b", xglm(32, 4096, 32), "7.5B", alias="xglm"),
    sizes="Lin et al. 2021, arXiv:2112.10668, table 2; sizes as released",
    tokenizer="SentencePiece unigram, 256,008",
)
BIOGPT = Origin("biogpt", "gpt2", 2022, "arXiv:2210.10341, section 3").lineage(
    "embeddings times √d_model, 42,384 tokens of abstracts in biology and medicine",
    Preset("biogpt", biogpt(24, 1024, 16), "347M"),
    family="xglm",
    sizes="Luo et al. 2022, arXiv:2210.10341, section 3; sizes as released (total from memory)",
    tokenizer="BPE after Moses, 42,384",
)
