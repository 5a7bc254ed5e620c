"""JetMoE: experts for attention's heads as for feed-forwards (Shen et al. 2024, arXiv:2404.07413)."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import AttentionSpec, MoASpec, MoESpec, RotarySpec, RouterSpec
from anyformer.spec import Count, ModelSpec, Width


def jetmoe(n_layers: int, d_model: int, kv_heads: int, d_ff: int, head_dim: int) -> ModelSpec:
    """LLaMA with tied tables and two mixtures a layer, of heads and of feed-forwards, biases of their sums (section 2)."""
    router = RouterSpec(n_experts=Count(8), top_k=2, score="softmax-of-chosen")
    dense = llama(n_layers, d_model, kv_heads, d_ff, head_dim=head_dim, tied=True, context=4096)
    heads = MoASpec(router=router, kv_heads=Count(kv_heads), head_dim=Width(head_dim), rotary=RotarySpec(), bias=True)
    return changed(changed(with_experts(dense, router), MoESpec, bias=True), AttentionSpec, projection=heads)


JETMOE = Origin("jetmoe", "mixtral", 2024, "arXiv:2404.07413, section 2").lineage(
    "experts for queries and what heads give too, on keys and values that all share",
    Preset("jetmoe-8b", jetmoe(24, 2048, 16, 5632, 128), "8.52B", alias="jetmoe"),
    sizes="Shen et al. 2024, arXiv:2404.07413, and the released configuration (from memory)",
    tokenizer="SentencePiece BPE with byte fallback, 32,000",
)
