"""Qwen's mixtures: many narrow experts beside a gated one for all tokens (Qwen 2024; Yang et al. 2024, arXiv:2407.10671)."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.llama import llama
from anyformer.families.mixtral import with_experts
from anyformer.families.preset import Preset
from anyformer.layers import GatedFeedForwardSpec, GQASpec, RouterSpec, SiLU
from anyformer.spec import Count, ModelSpec, Width


def qwen_moe(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    n_experts: int,
    top_k: int,
    d_expert: int,
    d_shared: int,
    context: int,
    vocab_size: int = 151_936,
) -> ModelSpec:
    """LLaMA with biases of queries, keys and values, and experts whose weights are not made to sum to 1."""
    dense = llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_expert,
        vocab_size=vocab_size,
        theta=1_000_000.0,
        context=context,
    )
    biased = changed(dense, GQASpec, bias_query=True, bias_key=True, bias_value=True)
    shared = GatedFeedForwardSpec(d_ff=Width(d_shared), activation=SiLU())
    return with_experts(biased, RouterSpec(n_experts=Count(n_experts), top_k=top_k), shared, gate=True)


_A2_7B = qwen_moe(
    n_layers=24,
    d_model=2048,
    n_heads=16,
    n_kv_heads=16,
    n_experts=60,
    top_k=4,
    d_expert=1408,
    d_shared=5632,
    context=8192,
)
_57B = qwen_moe(
    n_layers=28,
    d_model=3584,
    n_heads=28,
    n_kv_heads=4,
    n_experts=64,
    top_k=8,
    d_expert=2560,
    d_shared=20_480,
    context=131_072,
)
BPE = "byte-level BPE, 151,646"

PRESETS = (
    Preset(
        "qwen1.5-moe-a2.7b",
        "qwen-moe",
        _A2_7B,
        "Qwen team 2024, Qwen1.5-MoE blog and released configuration (from memory); active parameters: 2.7B",
        "14.3B",
        None,
        BPE,
    ),
    Preset(
        "qwen2-57b-a14b",
        "qwen-moe",
        _57B,
        "Yang et al. 2024, arXiv:2407.10671, table 1 (from memory); active parameters: 14B",
        "57B",
        None,
        BPE,
    ),
)
