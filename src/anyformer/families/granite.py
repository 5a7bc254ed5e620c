"""Granite 3, LLaMA with four multipliers in place of a change of scale while training, and its mixtures (IBM 2024); HyperCLOVA X
SEED Think, which has them and norms behind the branches too (NAVER 2025)."""

from __future__ import annotations

from anyformer.families.compose import changed, layered, windowed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import AddSpec, AttentionSpec, RMSNormSpec, RouterSpec, TokensSpec
from anyformer.spec import BranchSpec, Count, HeadSpec, ModelSpec, ScaleSpec


def multiplied(model: ModelSpec, *, tokens: float, branch: float, scores: float, logits: float) -> ModelSpec:
    """The model with factors of what enters, of what branches write, of scores, and a divisor of logits (μP's; 2203.03466)."""
    model = changed(model, TokensSpec, scale=ScaleSpec(factor=tokens))
    model = changed(model, AttentionSpec, scale=ScaleSpec(factor=scores))
    model = changed(model, HeadSpec, scale=ScaleSpec(factor=1 / logits))
    return model.but(stack=model.stack.but(residual=AddSpec(branch=branch)))


def granite(
    *sizes: int, vocab_size: int, scores: float, branch: float, logits: float, context: int = 4096, theta: float = 1e7
) -> ModelSpec:
    """LLaMA with tied tables and the multipliers."""
    model = llama(*sizes, vocab_size=vocab_size, eps=1e-5, theta=theta, tied=True, context=context)
    return multiplied(model, tokens=12.0, branch=branch, scores=scores, logits=logits)


def granite_moe(*sizes: int, n_experts: int, logits: float) -> ModelSpec:
    """Granite with experts, eight of which see each token with weights that are a softmax of their own."""
    dense = granite(*sizes, vocab_size=49_155, scores=1 / 64, branch=0.22, logits=logits, theta=1e4)
    return with_experts(dense, RouterSpec(n_experts=Count(n_experts), top_k=8, score="softmax-of-chosen"))


def with_sinks_and_windows(model: ModelSpec) -> ModelSpec:
    """The model with a score for each head that takes weight, and three windows of 128 after each layer that sees everything."""
    model = changed(model, AttentionSpec, sink=True)
    return layered(model, model, *[windowed(model, 128)] * 3)


def hyperclova(*sizes: int, scores: float, logits: float) -> ModelSpec:
    """Granite with a norm after each branch too, and logits that are multiplied (the report of SEED Think, arXiv:2506.22403)."""
    model = llama(*sizes, vocab_size=110_592, eps=1e-5, theta=1e8, context=131_072)
    model = changed(model, BranchSpec, norm_out=RMSNormSpec(eps=1e-5))
    return multiplied(model, tokens=10.0, branch=1.0, scores=scores, logits=1 / logits)


RELEASED = "IBM Granite Team, the released configurations (multipliers, theta and context from memory)"
BPE = "byte-level BPE (StarCoder's), {}"

GRANITE = Origin("granite", "llama2", 2024, "the Granite 3.0 report, 2024, from memory").lineage(
    "factors of the embeddings, branches, scores and logits; tied tables, theta 10,000,000",
    Preset(
        "granite-3.3-2b",
        granite(40, 2048, 32, 8192, 8, vocab_size=49_159, scores=1 / 64, branch=0.22, logits=8.0, context=131_072),
        "2.5B",
        alias="granite",
    ),
    Preset(
        "granite-3.3-8b",
        granite(40, 4096, 32, 12_800, 8, vocab_size=49_159, scores=1 / 128, branch=0.22, logits=16.0, context=131_072),
        "8.1B",
        "8.17B, which the report cuts",
    ),
    sizes=RELEASED,
    tokenizer=BPE.format("49,159"),
)
GRANITE_MOE = Origin("granite-moe", "granite", 2024, "the Granite 3.0 report, 2024, from memory").lineage(
    "experts, eight for a token",
    Preset("granite-3.0-1b-a400m", granite_moe(24, 1024, 16, 512, 8, n_experts=32, logits=6.0), "1.3B"),
    Preset("granite-3.0-3b-a800m", granite_moe(32, 1536, 24, 512, 8, n_experts=40, logits=6.0), "3.3B"),
    family="granite",
    sizes=RELEASED + "; active parameters: 400M and 800M",
    tokenizer=BPE.format("49,155"),
)
_SWASH = granite(24, 2560, 20, 8192, 4, vocab_size=100_352, scores=1.0, branch=1.0, logits=1.0, context=8192, theta=1e4)
GRANITE_SWA = Origin("granite-swa", "granite", 2026, "transformers' class of Granite SWA").lineage(
    "three windows of 128 after each full layer, sinks, 100,352 tokens",
    Preset(
        "granite-swash-2b",
        changed(with_sinks_and_windows(_SWASH), TokensSpec, scale=ScaleSpec()),
        "2B",
        "2.14B, which the name cuts",
        alias="granite-swa",
    ),
    family="granite",
    sizes="the sizes of transformers' class, whose multipliers are 1 and theta 10,000 (those of the release are not known here)",
    tokenizer="byte-level BPE, 100,352",
)
_MOE_SWA = multiplied(llama(32, 4096, 32, 11_008), tokens=1.0, branch=1.0, scores=1.0, logits=1.0)
_CHOICE = RouterSpec(n_experts=Count(8), top_k=2, score="softmax-of-chosen")
GRANITE_MOE_SWA = Origin("granite-moe-swa", "granite-swa", 2026, "transformers' class of Granite MoE SWA").lineage(
    "experts, two for a token",
    Preset("granite-moe-swa", with_sinks_and_windows(with_experts(_MOE_SWA, _CHOICE))),
    family="granite",
    sizes="the sizes and multipliers of transformers' class (those of the release, a 3B, are not known here)",
    tokenizer="32,000",
)
HYPERCLOVA = Origin("hyperclova-x-seed", "granite", 2025, "arXiv:2506.22403, from memory").lineage(
    "norms behind the branches too, 110,592 tokens",
    Preset(
        "hyperclova-x-seed-think-14b",
        hyperclova(38, 6144, 48, 14_336, 8, scores=1 / 128, logits=0.125),
        "14B",
        "14.74B, which the name cuts",
        alias="hyperclova-x-seed",
    ),
    family="granite",
    sizes="NAVER 2025, the released configuration (all of it from memory, unverified)",
    tokenizer="byte-level BPE, 110,592",
)
