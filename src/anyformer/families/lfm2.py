"""LFM2, its mixture, LFM3: gated short convolutions, attention in every third layer or so: Liquid AI 2025, arXiv:2511.23404."""

from __future__ import annotations

from anyformer.families.compose import changed, elsewhere, mixing, windowed, with_layers
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import (
    AttentionSpec,
    CausalConvolutionSpec,
    OutputGateSpec,
    ProportionalRoPE,
    RMSNormSpec,
    RotarySpec,
    RouterSpec,
    ShortConvolutionSpec,
)
from anyformer.spec import BranchSpec, ModelSpec

ATTENDING = (2, 5, 8, 10, 12, 14)  # of sixteen layers
ATTENDING_OF_24 = (2, 6, 10, 14, 18, 21)


def _attending(*sizes: int) -> ModelSpec:
    """LLaMA with QK-norm and tied tables."""
    plain = llama(*sizes, vocab_size=65_536, eps=1e-5, theta=1e6, tied=True, context=128_000)
    return with_qk_norms(plain, eps=1e-5)


def lfm2(*sizes: int, attending: tuple[int, ...] = ATTENDING) -> ModelSpec:
    """LLaMA with QK-norm and tied tables, whose other layers than the `attending` have convolutions (section 2)."""
    return elsewhere(_attending(*sizes), attending, ShortConvolutionSpec())


def lfm2_moe(
    *sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 2, attending: tuple[int, ...] = ATTENDING_OF_24
) -> ModelSpec:
    """LFM2 with experts for the feed-forwards but of the first `n_dense` layers (section 2, from memory)."""
    return experts_after(lfm2(*sizes, attending=attending), n_dense, choice, d_expert)


def lfm3(*sizes: int) -> ModelSpec:
    """LFM2 with norms behind branches too, a gate for each head and convolutions over seven tokens; of four layers one attends to
    all tokens, half of its pairs turning, and but for the first four one to a window (transformers' class)."""
    plain = llama(*sizes, head_dim=128, vocab_size=128_000, eps=1e-5, tied=True, context=128_000)
    plain = changed(with_qk_norms(plain, eps=1e-5), AttentionSpec, gate=OutputGateSpec(over="heads"))
    plain = changed(plain, BranchSpec, norm_out=RMSNormSpec(eps=1e-5))
    far = changed(plain, RotarySpec, theta=1e6, scaling=ProportionalRoPE(share=0.5)).stack.blocks[0]
    near = windowed(plain, 256).stack.blocks[0]
    short = mixing(near, ShortConvolutionSpec(convolution=CausalConvolutionSpec(size=7)))
    layers = (far if i % 4 == 2 else near if i % 4 == 0 and i else short for i in range(plain.n_layers))
    return with_layers(plain, layers)


def choice(n_experts: int, top_k: int) -> RouterSpec:
    """DeepSeek-V3's without groups; 1e-6 more than their sum divides the weights."""
    return router(n_experts, top_k, 1.0).but(eps=1e-6)


LFM2 = Origin("lfm2", "qwen3", 2025, "arXiv:2511.23404, section 2, from memory").lineage(
    "gated convolutions over three tokens in ten of sixteen layers; tied tables",
    Preset("lfm2-350m", lfm2(16, 1024, 16, 4608, 8), "350M", "354.5M, which the release rounds to the name"),
    Preset("lfm2-700m", lfm2(16, 1536, 24, 6912, 8), "700M", "742.5M, which the release rounds to the name"),
    Preset("lfm2-1.2b", lfm2(16, 2048, 32, 8192, 8), "1.2B", alias="lfm2"),
    sizes="Liquid AI, July 2025, the released configurations; which layers attend from memory",
    tokenizer="byte-level BPE, 65,536",
)
LFM2_MOE = Origin("lfm2-moe", "lfm2", 2025, "arXiv:2511.23404, section 2, from memory").lineage(
    "32 experts after two dense layers, chosen as DeepSeek-V3's; six of 24 layers attend",
    Preset(
        "lfm2-8b-a1b",
        lfm2_moe(24, 2048, 32, 7168, 8, d_expert=1792, choice=choice(32, 4)),
        "8.3B",
        alias="lfm2-moe",
    ),
    family="lfm2",
    sizes="Liquid AI, October 2025, the released configuration; active parameters: 1.5B",
    tokenizer="byte-level BPE, 65,536",
)
LFM3 = Origin("lfm3", "lfm2", 2026, "transformers' class of LFM3").lineage(
    "norms behind branches, gated values, convolutions over seven tokens, windows of 256; 128,000 tokens",
    Preset("lfm3-1.7b", lfm3(24, 2048, 16, 7680, 4), "1.7B", alias="lfm3"),
    family="lfm2",
    sizes="Liquid AI 2026, the sizes of transformers' class",
    tokenizer="byte-level BPE, 128,000",
)
