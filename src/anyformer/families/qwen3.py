"""Qwen 3, Qwen 2 with a norm over each head's queries and keys instead of biases, and its mixtures: arXiv:2505.09388."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import GQASpec, RMSNormSpec, RouterSpec
from anyformer.spec import Count, ModelSpec


def with_qk_norms(model: ModelSpec, eps: float = 1e-6) -> ModelSpec:
    """The model with an RMSNorm over each head's queries and keys, before they rotate (arXiv:2505.09388, section 2)."""
    norm = RMSNormSpec(eps=eps)
    return changed(model, GQASpec, norm_query=norm, norm_key=norm)


def qwen3(*sizes: int, tied: bool = False, context: int = 40_960, theta: float = 1e6) -> ModelSpec:
    """LLaMA with QK-norm and heads of 128 at every size; the small are tied (arXiv:2505.09388, table 1)."""
    plain = llama(*sizes, head_dim=128, vocab_size=151_936, theta=theta, tied=tied, context=context)
    return with_qk_norms(plain)


def qwen3_moe(*sizes: int, n_experts: int, **fields: Any) -> ModelSpec:
    """Qwen 3 with experts in every layer and none for all tokens; the weights of those chosen sum to 1 (table 2)."""
    return with_experts(qwen3(*sizes, **fields), RouterSpec(n_experts=Count(n_experts), top_k=8, renormalise=True))


small = partial(qwen3, tied=True)
TOKENIZER = "byte-level BPE, 151,669"
RELEASED = "Yang et al. 2025, arXiv:2505.09388, table {} and the released configurations, context from memory"
ACTIVE = "; active parameters: {}"

QWEN3 = Origin("qwen3", "qwen2", 2025, "arXiv:2505.09388, section 2").lineage(
    "QK-norm for the biases, heads of 128",
    Preset("qwen3-0.6b", small(28, 1024, 16, 3072, 8), "0.6B"),
    Preset("qwen3-1.7b", small(28, 2048, 16, 6144, 8), "1.7B"),
    Preset("qwen3-4b", small(36, 2560, 32, 9728, 8), "4.0B"),
    Preset("qwen3-8b", qwen3(36, 4096, 32, 12_288, 8), "8.2B", alias="qwen3"),
    Preset("qwen3-14b", qwen3(40, 5120, 40, 17_408, 8), "14.8B"),
    Preset("qwen3-32b", qwen3(64, 5120, 64, 25_600, 8), "32.8B"),
    sizes=RELEASED.format(1) + "; totals of the model cards",
    tokenizer=TOKENIZER,
)
QWEN3_MOE = Origin("qwen3-moe", "qwen3", 2025, "arXiv:2505.09388, section 2").lineage(
    "128 experts in every layer, eight for a token with weights that sum to 1",
    Preset(
        "qwen3-30b-a3b",
        qwen3_moe(48, 2048, 32, 768, 4, n_experts=128),
        "30.5B",
        source=RELEASED.format(2) + ACTIVE.format("3.3B"),
    ),
    Preset(
        "qwen3-235b-a22b",
        qwen3_moe(94, 4096, 64, 1536, 4, n_experts=128),
        "235B",
        source=RELEASED.format(2) + ACTIVE.format("22B"),
    ),
    Preset(
        "qwen3-coder-480b-a35b",
        qwen3_moe(62, 6144, 96, 2560, 8, n_experts=160, theta=1e7, context=262_144),
        "480B",
        source="Qwen team, July 2025, the released configuration (from memory); active parameters: 35B",
    ),
    family="qwen3",
    tokenizer=TOKENIZER,
)
