"""Qwen3-Next and Qwen3.5: gated DeltaNet in three of four layers, gated attention in the fourth (Qwen team 2025 and 2026)."""

from __future__ import annotations

from typing import Any

from anyformer.families.compose import changed, every, gated
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import (
    AttentionSpec,
    GatedDeltaNetSpec,
    OutputGateSpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    SiLU,
)
from anyformer.spec import Count, ModelSpec

EVERY = 4


def gated_attention(model: ModelSpec) -> ModelSpec:
    """The model with gates of attention's values, positions that turn a quarter of each head, and gains stored minus one."""
    model = changed(model, AttentionSpec, gate=OutputGateSpec())
    return changed(changed(model, RotarySpec, fraction=0.25), RMSNormSpec, weight_offset=1.0, cast="after")


def hybrid(model: ModelSpec, n_key_heads: int = 16, n_heads: int = 32) -> ModelSpec:
    """The model with gated DeltaNet in place of attention but in each fourth layer; its norm's gain is stored as it is."""
    return every(EVERY, model, GatedDeltaNetSpec(n_key_heads=Count(n_key_heads), n_heads=Count(n_heads)))


def qwen3_5(
    *sizes: int, head_dim: int = 256, vocab_size: int = 248_320, context: int = 262_144, theta: float = 1e7
) -> ModelSpec:
    """Qwen 3 with heads of 256 that are gated."""
    plain = llama(*sizes, head_dim=head_dim, vocab_size=vocab_size, theta=theta, context=context)
    return gated_attention(with_qk_norms(plain))


def qwen3_next_moe(*sizes: int, n_experts: int, top_k: int, **fields: Any) -> ModelSpec:
    """The same with narrow experts in every layer, beside a gated one of their width for all tokens."""
    dense = qwen3_5(*sizes, **fields)
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, renormalise=True)
    return with_experts(dense, router, gated(sizes[3], SiLU()), gate=True)


TOKENIZER = "byte-level BPE, {}"
MEMORY = "the released configuration (theta and context from memory); active parameters: {}"

QWEN3_NEXT = Origin("qwen3-next", "qwen3-moe", 2025, "Qwen team, September 2025, from memory").lineage(
    "gated DeltaNet in three of four layers, attention with a gate and 512 experts beside a gated one",
    Preset(
        "qwen3-next-80b-a3b",
        hybrid(qwen3_next_moe(48, 2048, 16, 512, 2, n_experts=512, top_k=10, vocab_size=151_936)),
        "80B",
        "79.7B, which the release rounds to the name",
        source="Qwen team, September 2025, " + MEMORY.format("3B"),
        alias="qwen3-next",
    ),
    tokenizer=TOKENIZER.format("151,669"),
)
QWEN3_5 = Origin("qwen3.5", "qwen3-next", 2026, "Qwen team, 2026, from memory").lineage(
    "dense sizes too, 248,320 tokens",
    Preset("qwen3.5-9b", hybrid(qwen3_5(32, 4096, 16, 12_288, 4)), "9.0B", alias="qwen3.5"),
    Preset("qwen3.5-27b", hybrid(qwen3_5(64, 5120, 24, 17_408, 4), n_heads=48), "26.9B"),
    Preset(
        "qwen3.5-35b-a3b",
        hybrid(qwen3_next_moe(40, 2048, 16, 512, 2, n_experts=256, top_k=8)),
        "35B",
        "34.7B of the text model, which the release rounds to the name",
    ),
    Preset(
        "qwen3.5-397b-a17b",
        hybrid(qwen3_next_moe(60, 4096, 32, 1024, 2, n_experts=512, top_k=10), n_heads=64),
        "397B",
        "396.3B of the text model, which the release rounds to the name",
    ),
    known="qwen3.5-9b",
    sizes="Qwen team, 2026, the text model of the released configuration, from memory",
    tokenizer=TOKENIZER.format("248,320"),
)
