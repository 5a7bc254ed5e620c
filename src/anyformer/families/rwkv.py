"""RWKV-4: a mean of values that decay in place of attention, and a feed-forward that sees the token before, too.

Peng et al. 2023, arXiv:2305.13048.
"""

from __future__ import annotations

from anyformer.families.compose import language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import ChannelMixSpec, LayerNormSpec, WKVSpec
from anyformer.spec import ModelSpec, Width


def rwkv(n_layers: int, d_model: int) -> ModelSpec:
    """Pre-norm LayerNorms, one more behind the embedding, time mixing and channel mixing in turn (section 3)."""
    norm = LayerNormSpec(eps=1e-5)
    layer = serial(norm, WKVSpec(), ChannelMixSpec(d_ff=Width(4 * d_model)))
    blocks = repeat(layer, n_layers)
    return language_model(50_277, d_model, blocks, norm, tied=False, embedding_norm=norm, context=1024)


RWKV = Origin("rwkv", "gpt2", 2023, "arXiv:2305.13048, section 3").lineage(
    "decaying means of values in place of attention, shifts by a token in place of positions; no biases, no tied table",
    Preset("rwkv-4-169m", rwkv(12, 768), "169M"),
    Preset("rwkv-4-430m", rwkv(24, 1024), "430M"),
    Preset("rwkv-4-1b5", rwkv(24, 2048), "1.515B"),
    Preset("rwkv-4-3b", rwkv(32, 2560), "2.985B"),
    Preset("rwkv-4-7b", rwkv(32, 4096), "7.393B"),
    Preset("rwkv-4-14b", rwkv(40, 5120), "14.15B", alias="rwkv"),
    sizes="Peng et al. 2023, arXiv:2305.13048, table 2 (from memory), and the released configurations",
    tokenizer="byte-level BPE (GPT-NeoX's), 50,277",
)
