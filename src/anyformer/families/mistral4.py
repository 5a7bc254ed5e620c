"""Ministral 3, LLaMA stretched by YaRN with queries that grow with their positions, and Mistral Small 4, which does the same to
DeepSeek-V3's latent attention and experts (Mistral AI 2025 and 2026)."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.deepseek import deepseek, sharpened
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import AttentionSpec, LogSteps, MLASpec, RotarySpec, RouterSpec, YaRN
from anyformer.spec import Count, Length, ModelSpec, Width


def grown(model: ModelSpec, factor: float, original: int) -> ModelSpec:
    """The model stretched by YaRN, whose sharpening is left out of the rotation, with queries that grow in steps."""
    length = Length(original)
    scaling = YaRN(factor=factor, original_context=length, attention_factor=1.0)
    model = changed(changed(model, RotarySpec, scaling=scaling), AttentionSpec, query_scale=LogSteps(length=length))
    return model.but(context=Length(round(factor * original)))


def ministral3(*sizes: int, tied: bool = False) -> ModelSpec:
    """Mistral's LLaMA, stretched from 16,384 tokens to 262,144 (the release of December 2025, from memory)."""
    return grown(llama(*sizes, head_dim=128, vocab_size=131_072, eps=1e-5, theta=1e6, tied=tied), 16.0, 16_384)


def mistral4(*sizes: int, d_expert: int, n_experts: int, top_k: int, n_dense: int = 0) -> ModelSpec:
    """DeepSeek-V3 with narrower latents and softmax scores, stretched from 8,192 tokens to 1,048,576."""
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k, group_score="top2-sum", renormalise=True)
    model = deepseek(*sizes, d_expert=d_expert, router=router, n_dense=n_dense, vocab_size=131_072)
    narrow = {"kv_rank": Width(256), "query_rank": Width(1024), "head_dim": Width(64)}
    model = changed(model, MLASpec, **narrow)
    return grown(changed(model, AttentionSpec, scale=sharpened(128.0, 1.0)), 128.0, 8192)


CARD = "Mistral AI, {}, the released configurations (theta, YaRN and growth from memory; the text model alone)"
TEKKEN = "byte-level BPE (Tekken), 131,072"

MINISTRAL3 = Origin("ministral3", "ministral", 2025, "the release of December 2025, from memory").lineage(
    "no windows, YaRN from 16,384 tokens to 262,144, queries that grow with their positions",
    Preset("ministral-3-3b", ministral3(26, 3072, 32, 9216, 8, tied=True), "3.4B"),
    Preset(
        "ministral-3-8b", ministral3(34, 4096, 32, 14_336, 8), "8.4B", "8.49B, which the card cuts", alias="ministral3"
    ),
    Preset("ministral-3-14b", ministral3(40, 5120, 32, 16_384, 8), "13.5B"),
    family="mistral",
    sizes=CARD.format("December 2025"),
    tokenizer=TEKKEN,
)
MISTRAL4 = Origin("mistral4", "deepseek-v3", 2026, "transformers' Mistral4ForCausalLM, and from memory").lineage(
    "softmax scores, narrower latents, queries that grow with their positions, experts in every layer",
    Preset(
        "mistral-small-4",
        mistral4(36, 4096, 32, 12_288, d_expert=2048, n_experts=128, top_k=4),
        "119B",
        alias="mistral4",
    ),
    family="mistral",
    sizes=CARD.format("2026"),
    tokenizer=TEKKEN,
)
