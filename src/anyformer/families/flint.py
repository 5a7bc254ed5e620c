"""Flint: Qwen 3's mixture with windows, sinks and one ungated expert for all tokens (RecursiveSI 2026)."""

from __future__ import annotations

from anyformer.families.compose import changed, windowed, with_layers_of
from anyformer.families.glm import experts_after
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import AttentionSpec, GQASpec, RouterSpec
from anyformer.spec import Count, ModelSpec

WINDOW = 513


def sees_all(i: int, n_layers: int) -> bool:
    """Whether the i-th of so many layers has no window."""
    return i < 2 or i % 4 == 1 or i == n_layers - 1


def flint(*sizes: int, d_expert: int, d_shared: int, n_experts: int, top_k: int, n_dense: int = 2) -> ModelSpec:
    """QK-norm, a sink for each head, sigmoid scores that are divided by their sum; the first two layers, every fourth and the
    last see everything and rotate nothing, the others a window of 513 (transformers' class)."""
    plain = llama(*sizes, head_dim=128, vocab_size=150_144, context=262_144)
    plain = changed(with_qk_norms(plain), AttentionSpec, sink=True)
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="sigmoid", renormalise=True)
    full = [i for i in range(plain.n_layers) if sees_all(i, plain.n_layers)]
    dense = with_layers_of(windowed(plain, WINDOW), changed(plain, GQASpec, rotary=None), full)
    return experts_after(dense, n_dense, router, d_expert, d_shared)


FLINT = Origin("flint", "qwen3-moe", 2026, "transformers' class of Flint").lineage(
    "three windows of 513 to a full layer without positions, sinks, an expert for all tokens, 150,144 tokens",
    Preset("flint", flint(49, 2048, 32, 6144, 4, d_expert=512, d_shared=1024, n_experts=256, top_k=6)),
    sizes="RecursiveSI 2026, the sizes of transformers' class",
    tokenizer="byte-level BPE, 150,144",
)
