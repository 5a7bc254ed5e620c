"""Laguna, gated attention around DeepSeek-V3's experts, with as many heads as each layer says: Poolside 2026."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import AttentionSpec, OutputGateSpec, RotarySpec, RouterSpec, Softplus
from anyformer.spec import ModelSpec

GATE = OutputGateSpec(over="heads", activation=Softplus())


def laguna(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1) -> ModelSpec:
    """LLaMA with QK-norm, half of each head turning and a softplus of each head's values; experts beside a shared one after dense
    layers (transformers' class)."""
    plain = llama(*sizes, head_dim=128, vocab_size=100_352, theta=500_000.0, context=131_072)
    plain = changed(changed(with_qk_norms(plain), RotarySpec, fraction=0.5), AttentionSpec, gate=GATE)
    return experts_after(plain, n_dense, choice, d_expert, d_expert)


LAGUNA = Origin("laguna", "trinity", 2026, "transformers' class of Laguna").lineage(
    "softplus gates, one a head; full layers, of which half of each head turns; no norms behind branches",
    Preset(
        "laguna-33b", laguna(40, 2048, 48, 8192, 8, d_expert=512, choice=router(256, 8, 1.0)), "33B", alias="laguna"
    ),
    sizes="Poolside 2026, the sizes of transformers' class: the released models have windows, and more heads in some layers",
    tokenizer="byte-level BPE, 100,352",
)
