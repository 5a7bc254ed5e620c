"""Phi-3.5-MoE: sixteen experts chosen by SparseMixer, LayerNorms and biases: Abdin et al. 2024, arXiv:2404.14219."""

from __future__ import annotations

from anyformer.families.compose import attend, gated, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import LayerNormSpec, MoESpec, RotarySpec, RouterSpec, SiLU
from anyformer.spec import Count, ModelSpec


def phi_moe(*, n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int) -> ModelSpec:
    """Pre-norm LayerNorm, rotary positions, SwiGLU experts, biases in attention and in the head."""
    norm, attention = LayerNormSpec(eps=1e-5), attend(n_heads, n_kv_heads, bias=True, rotary=RotarySpec())
    router = RouterSpec(n_experts=Count(16), top_k=2, score="sparsemixer")
    layer = serial(norm, attention, MoESpec(router=router, expert=gated(d_ff, SiLU())))
    return language_model(32_064, d_model, repeat(layer, n_layers), norm, tied=False, head_bias=True, context=4096)


PHI_MOE = Origin("phi-moe", "phi3", 2024, "arXiv:2404.14219, section 2").lineage(
    "sixteen experts, two for a token, LayerNorm, biases of attention",
    Preset(
        "phi3.5-moe",
        phi_moe(n_layers=32, d_model=4096, n_heads=32, n_kv_heads=8, d_ff=6400),
        "42B",
        "41.87B; here at the context of 4,096 that its LongRoPE starts from: the factors come with the released "
        "configuration",
    ),
    sizes="Abdin et al. 2024, arXiv:2404.14219, section 2 and released configuration (from memory); active parameters: 6.6B",
    tokenizer="SentencePiece BPE with byte fallback, 32,064",
)
