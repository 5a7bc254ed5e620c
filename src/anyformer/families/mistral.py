"""Mistral 7B, LLaMA with grouped heads and, at first, a window, Ministral 8B, and Mixtral, with eight experts: arXiv:2310.06825,
2401.04088."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyformer.families.compose import edited, layered, windowed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import GatedFeedForwardSpec, MoESpec, RouterSpec
from anyformer.spec import Count, MixerSpec, ModelSpec

SIZES = (32, 4096, 32, 14_336, 8)  # as LLaMA's, with 8 key/value heads and a d_ff of 3.5 d_model (table 1)
mistral = partial(llama, head_dim=128, eps=1e-5, context=32_768)

LATER = "the releases of March and May 2024 (from memory): theta 1,000,000, no window"
BPE = "SentencePiece BPE with byte fallback, {}"

MISTRAL = Origin("mistral", "llama2", 2023, "arXiv:2310.06825, section 2").lineage(
    "a window of 4,096 in every layer, grouped queries",
    Preset("mistral-7b-v0.1", windowed(mistral(*SIZES, context=8192), 4096), "7B", alias="mistral"),
    sizes="Jiang et al. 2023, arXiv:2310.06825, table 1",
    tokenizer=BPE.format("32,000"),
)
MISTRAL_V0_2 = Origin("mistral-v0.2", "mistral", 2024, "the releases of 2024, from memory").lineage(
    "no window, theta 1,000,000, 32,768 tokens",
    Preset("mistral-7b-v0.2", mistral(*SIZES, theta=1e6), "7B", tokenizer=BPE.format("32,000")),
    Preset("mistral-7b-v0.3", mistral(*SIZES, theta=1e6, vocab_size=32_768), "7B", tokenizer=BPE.format("32,768")),
    known="mistral-7b-v0.2",
    family="mistral",
    sizes=LATER,
)


def ministral(*sizes: int) -> ModelSpec:
    """Mistral with three windows to a full layer (the release of October 2024, from memory)."""
    model = mistral(*sizes, vocab_size=131_072, theta=1e8, context=131_072)
    return layered(model, *[windowed(model, 32_768)] * 3, model)


MINISTRAL = Origin("ministral", "mistral-v0.2", 2024, "the release of October 2024, from memory").lineage(
    "three windows of 32,768 to a full layer, 131,072 tokens",
    Preset("ministral-8b", ministral(36, 4096, 32, 12_288, 8), "8.02B"),
    family="mistral",
    sizes="Mistral AI, October 2024, the released configuration (window, its order, theta and context from memory)",
    tokenizer="byte-level BPE (Tekken), 131,072",
)


def with_experts(
    model: ModelSpec, router: RouterSpec, shared: MixerSpec | None = None, *, gate: bool = False
) -> ModelSpec:
    """The model with its feed-forwards as the experts of a mixture, beside one for all tokens where there is one."""

    def mixture(feed: GatedFeedForwardSpec) -> MoESpec:
        return MoESpec(router=router, expert=feed, shared_expert=shared, shared_gate=gate)

    return edited(model, GatedFeedForwardSpec, mixture)


def mixtral(*sizes: int, **fields: Any) -> ModelSpec:
    """LLaMA with experts, of which two see each token with weights that sum to 1 (section 2.1, table 1)."""
    dense = mistral(*sizes, theta=1e6, **fields)
    return with_experts(dense, RouterSpec(n_experts=Count(8), top_k=2, renormalise=True))


MIXTRAL = Origin("mixtral", "mistral", 2024, "arXiv:2401.04088, section 2").lineage(
    "eight experts for each feed-forward, two for a token, no window",
    Preset(
        "mixtral-8x7b",
        mixtral(*SIZES),
        "46.7B",
        source="Jiang et al. 2024, arXiv:2401.04088, table 1; active parameters: 12.9B",
        tokenizer=BPE.format("32,000"),
        alias="mixtral",
    ),
    Preset(
        "mixtral-8x22b",
        mixtral(56, 6144, 48, 16_384, 8, vocab_size=32_768, context=65_536),
        "141B",
        source="Mistral AI, April 2024, the released configuration (from memory); active parameters: 39B",
        tokenizer=BPE.format("32,768"),
    ),
    known="mixtral-8x7b",
)
