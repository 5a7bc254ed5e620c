"""MiniMax-01, lightning attention in seven of eight layers (arXiv:2501.08313); MiniMax-M2, which attends everywhere (2025)."""

from __future__ import annotations

from anyformer.families.compose import changed, edited, every
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import AddByDepthSpec, GQASpec, LightningAttentionSpec, RMSNormSpec, RotarySpec, RouterSpec
from anyformer.spec import Count, ModelSpec, SublayerSpec, Width


def minimax(*sizes: int, n_experts: int = 32, top_k: int = 2, head_dim: int = 128, attends: int = 8) -> ModelSpec:
    """Mixtral with lightning attention but in each layer of number `attends`, and with DeepNorm (section 2).

    A norm stands behind the embedding and behind each sum: the released code's, before whose branches the stream itself is
    normed, is this one whose last is the model's.
    """
    model = llama(*sizes, head_dim=head_dim, vocab_size=200_064, eps=1e-5, theta=1e7, context=10_240_000)
    model = with_experts(model, RouterSpec(n_experts=Count(n_experts), top_k=top_k, renormalise=True))
    model = edited(model, SublayerSpec, lambda pre: pre.but(norm_in=None, norm_sum=pre.norm_in))
    heads = next(model.nested(GQASpec))
    stack = every(attends, model, LightningAttentionSpec(n_heads=heads.n_heads, head_dim=Width(head_dim))).stack
    embedding = stack.embedding.but(norm=stack.norm)
    return model.but(stack=stack.but(embedding=embedding, residual=AddByDepthSpec(power=0.25), norm=None))


def minimax_m2(*sizes: int, n_experts: int = 256, top_k: int = 8) -> ModelSpec:
    """Mixtral with a router like DeepSeek-V3's, half of each head rotating, queries and keys normed as one vector each."""
    model = llama(*sizes, head_dim=128, vocab_size=200_064, theta=5e6, context=196_608)
    norm = RMSNormSpec(eps=1e-6)
    model = changed(model, GQASpec, norm_query=norm, norm_key=norm, norm_over="projection")
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="sigmoid", correction=True, renormalise=True)
    return with_experts(changed(model, RotarySpec, fraction=0.5), router)


MINIMAX = Origin("minimax-01", "mixtral", 2025, "arXiv:2501.08313, section 2").lineage(
    "linear attention with fixed decays in seven of eight layers; DeepNorm",
    Preset("minimax-text-01", minimax(80, 6144, 64, 9216, 8), "456B", alias="minimax-01"),
    family="minimax",
    sizes="MiniMax 2025, arXiv:2501.08313, section 2 (theta and context from memory; whole heads rotate, as transformers' class "
    "has it, where the paper rotates half of each); active parameters: 45.9B",
    tokenizer="byte-level BPE, 200,064",
)
MINIMAX_M2 = Origin("minimax-m2", "mixtral", 2025, "the release of MiniMax-M2, October 2025, from memory").lineage(
    "256 narrow experts chosen by sigmoid scores with corrections, QK-norm, half of each head rotates",
    Preset("minimax-m2", minimax_m2(62, 3072, 48, 1536, 8), "230B", "228.69B, which the release rounds"),
    family="minimax",
    sizes="MiniMax 2025, the released configuration (theta and context from memory); active parameters: 10B",
    tokenizer="byte-level BPE, 200,064",
)
