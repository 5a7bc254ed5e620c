"""Granite 4.0 H and Bamba: Mamba-2 in nine of ten layers, attention in the others (IBM 2024 and 2025)."""

from __future__ import annotations

from collections.abc import Collection

from anyformer.families.compose import changed, elsewhere, gated
from anyformer.families.granite import multiplied
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import GQASpec, RotarySpec, RouterSpec, SiLU, SSDSpec
from anyformer.spec import Count, ModelSpec


def with_mamba2(model: ModelSpec, attending: Collection[int]) -> ModelSpec:
    """The model with Mamba-2 on twice the width, in heads of 64, in place of attention but in the layers that attend."""
    return elsewhere(model, attending, SSDSpec(n_heads=Count(2 * model.stack.d_model // 64)))


def granite_hybrid(
    *sizes: int, shared: int | None = None, n_experts: int = 0, top_k: int = 0, scores: float, logits: float
) -> ModelSpec:
    """Granite without positions, of which layers 5, 15, 25 … attend; `shared`: the width beside experts."""
    plain = changed(llama(*sizes, vocab_size=100_352, eps=1e-5, tied=True, context=131_072), GQASpec, rotary=None)
    if shared is not None:
        router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="softmax-of-chosen")
        plain = with_experts(plain, router, gated(shared, SiLU()))
    model = multiplied(plain, tokens=12.0, branch=0.22, scores=scores, logits=logits)
    return with_mamba2(model, range(5, model.n_layers, 10))


def bamba(*sizes: int, attending: Collection[int] = (9, 18, 27)) -> ModelSpec:
    """LLaMA with Mamba-2 in all but three layers, whose positions turn half of each head."""
    plain = llama(*sizes, vocab_size=128_256, eps=1e-5, context=262_144)
    return with_mamba2(changed(plain, RotarySpec, fraction=0.5), attending)


GRANITE_HYBRID = Origin("granite-hybrid", "granite-moe", 2025, "the Granite 4.0 release, 2025, from memory").lineage(
    "Mamba-2 in nine of ten layers, no positions",
    Preset(
        "granite-4.0-h-micro",
        granite_hybrid(40, 2048, 32, 8192, 8, scores=1 / 64, logits=8.0),
        "3B",
        "3.19B, which the release rounds to the name",
        alias="granite-4.0",
    ),
    Preset(
        "granite-4.0-h-tiny",
        granite_hybrid(40, 1536, 12, 512, 4, shared=1024, n_experts=64, top_k=6, scores=1 / 128, logits=6.0),
        "7B",
        "6.94B, which the release rounds to the name",
    ),
    Preset(
        "granite-4.0-h-small",
        granite_hybrid(40, 4096, 32, 768, 8, shared=1536, n_experts=72, top_k=10, scores=1 / 128, logits=16.0),
        "32B",
    ),
    family="granite",
    sizes="IBM, October 2025, the released configurations (multipliers and which layers attend from memory)",
    tokenizer="byte-level BPE, 100,352",
)
BAMBA = Origin("bamba", "mamba2", 2024, "IBM, Princeton, CMU and UIUC, December 2024, from memory").lineage(
    "attention in three of thirty-two layers, a feed-forward in all",
    Preset("bamba-9b", bamba(32, 4096, 32, 14_336, 8), "9.78B", alias="bamba"),
    family="mamba2",
    sizes="the release of December 2024, from memory",
    tokenizer="byte-level BPE (tiktoken), 128,256",
)
