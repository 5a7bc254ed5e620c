"""Phi-3.5-MoE: sixteen experts chosen by SparseMixer, LayerNorms and biases: Abdin et al. 2024, arXiv:2404.14219."""

from __future__ import annotations

from anyformer.families.compose import attend, block, gated, language_model, pre_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import LayerNormSpec, MoESpec, RotarySpec, RouterSpec, SiLU
from anyformer.spec import Count, ModelSpec


def phi_moe(
    *,
    n_layers: int = 32,
    d_model: int = 4096,
    n_heads: int = 32,
    n_kv_heads: int = 8,
    d_ff: int = 6400,
    n_experts: int = 16,
    top_k: int = 2,
    vocab_size: int = 32_064,
    context: int = 131_072,
) -> ModelSpec:
    """Pre-norm LayerNorm, rotary positions, SwiGLU experts, biases in attention and in the head."""
    norm = LayerNormSpec(eps=1e-5)
    mixture = MoESpec(
        router=RouterSpec(n_experts=Count(n_experts), top_k=top_k, score="sparsemixer"), expert=gated(d_ff, SiLU())
    )
    attention = attend(n_heads, n_kv_heads, bias=True, rotary=RotarySpec())
    layer = block(pre_norm(norm, attention), pre_norm(norm, mixture))
    blocks = repeat(layer, n_layers)
    return language_model(vocab_size, d_model, blocks, norm, tied=False, head_bias=True, context=context)


PHI_MOE = Origin("phi-moe", "phi3", 2024, "arXiv:2404.14219, section 2").lineage(
    "sixteen experts, two for a token, LayerNorm, biases of attention",
    Preset(
        "phi3.5-moe",
        phi_moe(context=4096),
        "42B",
        "41.87B; here at the context of 4,096 that its LongRoPE starts from: the factors come with the released "
        "configuration",
    ),
    sizes="Abdin et al. 2024, arXiv:2404.14219, section 2 and released configuration (from memory); active parameters: 6.6B",
    tokenizer="SentencePiece BPE with byte fallback, 32,064",
)
