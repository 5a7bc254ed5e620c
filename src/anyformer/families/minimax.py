"""MiniMax-01, lightning attention in seven of eight layers (arXiv:2501.08313); MiniMax-M2, which attends everywhere (2025), and
M3, to blocks that an indexer chooses (2026)."""

from __future__ import annotations

from anyformer.families.compose import changed, edited, every, with_layers_of
from anyformer.families.gemma import NORM
from anyformer.families.glm import experts_after
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import (
    GELU,
    AddByDepthSpec,
    AttentionSpec,
    BlockIndexerSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LightningAttentionSpec,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
)
from anyformer.spec import Count, ModelSpec, SublayerSpec, Width, Window


def minimax(*sizes: int) -> ModelSpec:
    """Mixtral with lightning attention but in each eighth layer, and with DeepNorm (section 2).

    A norm stands behind the embedding and behind each sum: the released code's, before whose branches the stream itself is
    normed, is this one whose last is the model's.
    """
    model = llama(*sizes, head_dim=128, vocab_size=200_064, eps=1e-5, theta=1e7, context=10_240_000)
    model = with_experts(model, RouterSpec(n_experts=Count(32), top_k=2, renormalise=True))
    model = edited(model, SublayerSpec, lambda pre: pre.but(norm_in=None, norm_sum=pre.norm_in))
    heads = next(model.nested(GQASpec))
    stack = every(8, model, LightningAttentionSpec(n_heads=heads.n_heads, head_dim=Width(128))).stack
    embedding = stack.embedding.but(norm=stack.norm)
    return model.but(stack=stack.but(embedding=embedding, residual=AddByDepthSpec(power=0.25), norm=None))


ROUTER = RouterSpec(n_experts=Count(128), top_k=4, score="sigmoid", correction=True, renormalise=True)


def minimax_m2(*sizes: int) -> ModelSpec:
    """Mixtral with a router like DeepSeek-V3's, half of each head rotating, queries and keys normed as one vector each."""
    model = llama(*sizes, head_dim=128, vocab_size=200_064, theta=5e6, context=196_608)
    norm = RMSNormSpec(eps=1e-6)
    model = changed(model, GQASpec, norm_query=norm, norm_key=norm, norm_over="projection")
    return with_experts(changed(model, RotarySpec, fraction=0.5), ROUTER.but(n_experts=Count(256), top_k=8))


def minimax_m3(*sizes: int, d_expert: int, n_dense: int = 3) -> ModelSpec:
    """M2 with gains around 0, also of each head's queries and keys, and gpt-oss's clamped gates; behind the dense layers experts
    beside a shared one, and attention to the best 16 blocks of 128 keys."""
    model = llama(*sizes, head_dim=128, vocab_size=200_064, theta=5e6, context=524_288)
    model = changed(changed(model, GQASpec, norm_query=NORM, norm_key=NORM), RotarySpec, fraction=0.5)
    model = edited(model, RMSNormSpec, lambda _: NORM)
    model = changed(model, GatedFeedForwardSpec, activation=GELU(form="quick"), limit=7.0, up_offset=1.0)
    model = experts_after(model, n_dense, ROUTER.but(factor=2.0), d_expert, d_expert)
    heads = next(model.nested(GQASpec))
    indexer = BlockIndexerSpec(
        n_heads=Count(heads.kv_heads), head_dim=Width(128), top_k=Window(16), norm_query=NORM, norm_key=NORM
    )
    return with_layers_of(changed(model, AttentionSpec, indexer=indexer), model, range(n_dense))


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
MINIMAX_M3 = Origin("minimax-m3", "minimax-m2", 2026, "transformers' class of MiniMax-M3").lineage(
    "an indexer chooses 16 blocks of 128 keys for each head of keys; three dense layers, wider experts beside a shared one, "
    "clamped gates, QK-norm by head",
    Preset(
        "minimax-m3",
        minimax_m3(60, 6144, 64, 12_288, 4, d_expert=3072),
    ),
    family="minimax",
    sizes="MiniMax 2026, the sizes of transformers' class; which layers are dense and choose, and how much of a head rotates, "
    "are of the release, from memory, which counts 428B with what sees, 23B active",
    tokenizer="byte-level BPE, 200,064",
)
