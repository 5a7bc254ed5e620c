"""DBRX, sixteen experts of which four see each token, clamped queries, keys and values, LayerNorm (Databricks 2024)."""

from __future__ import annotations

from anyformer.families.compose import changed, normed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import GQASpec, LayerNormSpec, RouterSpec
from anyformer.spec import Count, ModelSpec


def dbrx(*sizes: int) -> ModelSpec:
    """Mixtral with LayerNorms without shift and q, k and v within ± 8 (the release of March 2024, from memory)."""
    model = llama(*sizes, vocab_size=100_352, theta=500_000.0, context=32_768)
    model = with_experts(model, RouterSpec(n_experts=Count(16), top_k=4, renormalise=True))
    return changed(normed(model, LayerNormSpec(eps=1e-5, bias=False)), GQASpec, clip=8.0)


DBRX = Origin("dbrx", "mixtral", 2024, "the release of DBRX, March 2024, from memory").lineage(
    "sixteen experts, four for a token, LayerNorm, clamped queries, keys and values, 100,352 tokens",
    Preset("dbrx", dbrx(40, 6144, 48, 10_752, 8), "132B"),
    sizes="Databricks 2024, the released configuration (theta, clip and context from memory); active parameters: 36B",
    tokenizer="byte-level BPE (tiktoken cl100k), 100,277 padded to 100,352",
)
