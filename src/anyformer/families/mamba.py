"""Mamba-2: no attention and no feed-forward, one state-space mixer a layer (Dao & Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from anyformer.families.compose import language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import RMSNormSpec, SSDSpec
from anyformer.spec import Count, ModelSpec, Width


def mamba2(
    n_layers: int, d_model: int, vocab_size: int, *, n_groups: int = 1, state_dim: int = 128, tied: bool = True
) -> ModelSpec:
    """Pre-norm RMSNorm and Mamba-2 on twice the width, in heads of 64 (arXiv:2405.21060, section 7)."""
    norm = RMSNormSpec(eps=1e-5)
    mixer = SSDSpec(n_heads=Count(2 * d_model // 64), n_groups=Count(n_groups), state_dim=Width(state_dim))
    return language_model(vocab_size, d_model, repeat(serial(norm, mixer), n_layers), norm, tied=tied)


MAMBA2 = Origin("mamba2", "llama", 2024, "arXiv:2405.21060, section 7").lineage(
    "one state-space mixer a layer in place of attention and a feed-forward: a state of one size, no positions",
    Preset("mamba2-130m", mamba2(24, 768, 50_288), "130M", "129.0M, which the release rounds to the name"),
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
    tokenizer="byte-level BPE (GPT-NeoX's), 50,277",
)
