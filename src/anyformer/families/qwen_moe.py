"""Qwen's mixtures: many narrow experts beside a gated one for all tokens (Qwen 2024; Yang et al. 2024, arXiv:2407.10671)."""

from __future__ import annotations

from anyformer.families.compose import gated
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.families.qwen2 import with_qkv_biases
from anyformer.layers import RouterSpec, SiLU
from anyformer.spec import Count, ModelSpec


def qwen_moe(
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    *,
    n_experts: int,
    top_k: int,
    d_expert: int,
    d_shared: int,
    context: int,
    vocab_size: int = 151_936,
) -> ModelSpec:
    """LLaMA with biases of queries, keys and values, and experts whose weights are not made to sum to 1."""
    dense = llama(
        n_layers, d_model, n_heads, d_expert, n_kv_heads, vocab_size=vocab_size, theta=1_000_000.0, context=context
    )
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k)
    return with_experts(with_qkv_biases(dense), router, gated(d_shared, SiLU()), gate=True)


QWEN_MOE = Origin("qwen-moe", "qwen2", 2024, "arXiv:2407.10671, section 2.2.2").lineage(
    "experts, beside a shared one behind a gate",
    Preset(
        "qwen1.5-moe-a2.7b",
        qwen_moe(24, 2048, 16, 16, n_experts=60, top_k=4, d_expert=1408, d_shared=5632, context=8192),
        "14.3B",
        source="Qwen team 2024, Qwen1.5-MoE blog and released configuration (from memory); active parameters: 2.7B",
    ),
    Preset(
        "qwen2-57b-a14b",
        qwen_moe(28, 3584, 28, 4, n_experts=64, top_k=8, d_expert=2560, d_shared=20_480, context=131_072),
        "57B",
        source="Yang et al. 2024, arXiv:2407.10671, table 1 (from memory); active parameters: 14B",
    ),
    tokenizer="byte-level BPE, 151,646",
)
