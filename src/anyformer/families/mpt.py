"""MPT: ALiBi, no bias anywhere, one table (MosaicML 2023)."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, ALiBiSpec, LayerNormSpec
from anyformer.spec import ModelSpec


def mpt(n_layers: int, d_model: int, n_heads: int, *, context: int = 2048) -> ModelSpec:
    """GPT-3's layers with ALiBi instead of positions and no biases, those of norms among them (the release, from memory)."""
    norm, attention = LayerNormSpec(eps=1e-5, bias=False), attend(n_heads, scores=(ALiBiSpec(),))
    blocks = repeat(serial(norm, attention, feed(4 * d_model, GELU(), bias=False)), n_layers)
    return language_model(50_432, d_model, blocks, norm, tied=True, context=context)


MPT = Origin("mpt", "gpt3", 2023, "the releases of MPT-7B and MPT-30B, May and June 2023, from memory").lineage(
    "ALiBi, no biases",
    Preset("mpt-7b", mpt(32, 4096, 32), "6.7B", "6.65B, which the release rounds up", alias="mpt"),
    Preset("mpt-30b", mpt(48, 7168, 64, context=8192), "30B", "29.96B"),
    sizes="MosaicML 2023, the released configurations (from memory)",
    tokenizer="byte-level BPE (GPT-NeoX's), 50,277 padded to 50,432",
)
