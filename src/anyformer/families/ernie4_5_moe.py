"""ERNIE 4.5's mixtures: experts chosen by a softmax with corrections, beside shared ones (Baidu 2025)."""

from __future__ import annotations

from anyformer.families.glm import experts_after
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama_like import ernie4_5
from anyformer.layers import RouterSpec
from anyformer.spec import Count, ModelSpec


def ernie4_5_moe(*sizes: int, d_expert: int, n_experts: int, top_k: int) -> ModelSpec:
    """ERNIE 4.5 with experts beside two shared ones after a dense layer; corrections sway the choice, never the weights."""
    choice = RouterSpec(n_experts=Count(n_experts), top_k=top_k, correction=True, renormalise=True)
    return experts_after(ernie4_5(*sizes), 1, choice, d_expert, 2 * d_expert)


ERNIE_MOE = Origin("ernie4.5-moe", "ernie4.5", 2025, "the ERNIE 4.5 report, 2025, from memory").lineage(
    "64 experts chosen by a softmax with corrections, beside two shared ones",
    Preset(
        "ernie-4.5-21b-a3b",
        ernie4_5_moe(28, 2560, 20, 12_288, 4, d_expert=1536, n_experts=64, top_k=6),
        "21B",
        "21.83B, which the name cuts",
        alias="ernie4.5-moe",
    ),
    family="llama_like",
    sizes="Baidu 2025, the released configuration; active parameters: 3B",
    tokenizer="SentencePiece BPE, 103,424",
)
