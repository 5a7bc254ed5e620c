"""MiniMax-M2, experts chosen by sigmoid scores with corrections and a norm over all queries, and keys (MiniMax 2025)."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import GQASpec, RMSNormSpec, RotarySpec, RouterSpec
from anyformer.spec import Count, ModelSpec


def minimax_m2(*sizes: int, n_experts: int = 256, top_k: int = 8) -> ModelSpec:
    """Mixtral with a router like DeepSeek-V3's, half of each head rotating, queries and keys normed as one vector each."""
    model = llama(*sizes, head_dim=128, vocab_size=200_064, theta=5e6, context=196_608)
    norm = RMSNormSpec(eps=1e-6)
    model = changed(model, GQASpec, norm_query=norm, norm_key=norm, norm_over="projection")
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="sigmoid", correction=True, renormalise=True)
    return with_experts(changed(model, RotarySpec, fraction=0.5), router)


MINIMAX_M2 = Origin("minimax-m2", "mixtral", 2025, "the release of MiniMax-M2, October 2025, from memory").lineage(
    "256 narrow experts chosen by sigmoid scores with corrections, QK-norm, half of each head rotates",
    Preset("minimax-m2", minimax_m2(62, 3072, 48, 1536, 8), "230B", "228.69B, which the release rounds"),
    family="minimax",
    sizes="MiniMax 2025, the released configuration (theta and context from memory); active parameters: 10B",
    tokenizer="byte-level BPE, 200,064",
)
