"""Mamba, Falcon Mamba and Mamba-2: no attention and no feed-forward, one state-space mixer a layer.

Gu & Dao 2023, arXiv:2312.00752; Zuo et al. 2024, arXiv:2410.05355; Dao & Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

from anyformer.families.compose import language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import RMSNormSpec, S6Spec, SSDSpec
from anyformer.spec import Count, MapSpec, ModelSpec, Width


def mamba(
    n_layers: int, d_model: int, vocab_size: int = 50_280, *, tied: bool = True, mixer_norm: MapSpec | None = None
) -> ModelSpec:
    """Pre-norm RMSNorm and S6 on twice the width (arXiv:2312.00752, section 3.4)."""
    norm = RMSNormSpec(eps=1e-5)
    layer = serial(norm, S6Spec(width=Width(2 * d_model), norm=mixer_norm))
    return language_model(vocab_size, d_model, repeat(layer, n_layers), norm, tied=tied)


def falcon_mamba(n_layers: int, d_model: int) -> ModelSpec:
    """Mamba with norms without gains of Δ's vector, B and C (arXiv:2410.05355, section 3)."""
    norm = RMSNormSpec(weight=False, eps=1e-6)
    return mamba(n_layers, d_model, 65_024, tied=False, mixer_norm=norm)


def mamba2(n_layers: int, d_model: int, vocab_size: int, *, n_groups: int = 1, tied: bool = True) -> ModelSpec:
    """Pre-norm RMSNorm and Mamba-2 on twice the width, in heads of 64 (arXiv:2405.21060, section 7)."""
    norm = RMSNormSpec(eps=1e-5)
    mixer = SSDSpec(n_heads=Count(2 * d_model // 64), n_groups=Count(n_groups))
    return language_model(vocab_size, d_model, repeat(serial(norm, mixer), n_layers), norm, tied=tied)


ROUNDED = "{}, which the release rounds to the name"
NEOX = "byte-level BPE (GPT-NeoX's), 50,277"
MAMBA = Origin("mamba", "llama", 2023, "arXiv:2312.00752, section 3").lineage(
    "one state-space mixer a layer in place of attention and a feed-forward: a state of one size, no positions",
    Preset("mamba-130m", mamba(24, 768), "130M", ROUNDED.format("129.1M")),
    Preset("mamba-370m", mamba(48, 1024), "370M", ROUNDED.format("371.5M")),
    Preset("mamba-790m", mamba(48, 1536), "790M", ROUNDED.format("793.2M")),
    Preset("mamba-1.4b", mamba(48, 2048), "1.4B"),
    Preset("mamba-2.8b", mamba(64, 2560), "2.8B", alias="mamba"),
    sizes="Gu & Dao 2023, arXiv:2312.00752, table 12, and the released configurations (sizes from memory)",
    tokenizer=NEOX,
)
FALCON_MAMBA = Origin("falcon-mamba", "mamba", 2024, "arXiv:2410.05355, section 3").lineage(
    "norms of each token's Δ, B and C",
    Preset("falcon-mamba-7b", falcon_mamba(64, 4096), "7.27B", alias="falcon-mamba"),
    sizes="Zuo et al. 2024, arXiv:2410.05355, table 1",
    tokenizer="byte-level BPE, 65,024",
)
MAMBA2 = Origin("mamba2", "mamba", 2024, "arXiv:2405.21060, section 7").lineage(
    "heads with one decay each, so that chunks are products; steps, writes and reads are of the input",
    Preset("mamba2-130m", mamba2(24, 768, 50_288), "130M", ROUNDED.format("129.0M")),
    Preset("mamba2-2.7b", mamba2(64, 2560, 50_288), "2.7B", alias="mamba2"),
    Preset(
        "codestral-mamba-7b",
        mamba2(64, 4096, 32_768, n_groups=8, tied=False),
        "7.3B",
        source="Mistral AI, July 2024, the released configuration",
        tokenizer="SentencePiece BPE with byte fallback, 32,768",
    ),
    known="mamba2-2.7b",
    sizes="Dao & Gu 2024, arXiv:2405.21060, table 10, and the released configurations (sizes from memory)",
    tokenizer=NEOX,
)
