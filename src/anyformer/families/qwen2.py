"""Qwen 1, 2 and 2.5, LLaMA with biases on q, k and v: arXiv:2309.16609, 2407.10671, 2412.15115; and Qwen's mixtures, of many
narrow experts beside a gated one for all tokens (Qwen 2024; arXiv:2407.10671)."""

from __future__ import annotations

from functools import partial

from anyformer.families.compose import changed, gated
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import CUT, llama
from anyformer.families.mistral import with_experts
from anyformer.layers import GQASpec, RouterSpec, SiLU
from anyformer.spec import Count, ModelSpec


def with_qkv_biases(model: ModelSpec) -> ModelSpec:
    """The model with biases where queries, keys and values are made (arXiv:2309.16609, section 2.3)."""
    return changed(model, GQASpec, bias_query=True, bias_key=True, bias_value=True)


def qwen2(*sizes: int, small: bool = False, eps: float = 1e-6, context: int = 32_768) -> ModelSpec:
    """Qwen with grouped heads at every size and theta 1,000,000; the small are tied (arXiv:2407.10671, 2.2)."""
    vocab_size = 151_936 if small else 152_064
    return with_qkv_biases(llama(*sizes, vocab_size=vocab_size, eps=eps, theta=1e6, tied=small, context=context))


_1_8B = llama(24, 2048, 16, 5504, vocab_size=151_936)
_7B = llama(32, 4096, 32, 11_008, vocab_size=151_936)
_14B = llama(40, 5120, 40, 13_696, vocab_size=152_064)
_72B = llama(80, 8192, 64, 24_576, vocab_size=152_064, theta=1e6, context=32_768)

TOKENIZER = "byte-level BPE (tiktoken), 151,646"
qwen25 = partial(
    Preset,
    family="qwen2",
    source="Yang et al. 2024, arXiv:2412.15115, table 1; totals of the model cards; eps and widths as released",
)
LONG = 131_072

QWEN = Origin("qwen", "llama", 2023, "arXiv:2309.16609, section 2.3").lineage(
    "biases of queries, keys and values, 151,936 tokens",
    Preset("qwen-1.8b", with_qkv_biases(_1_8B), "1.8B"),
    Preset("qwen-7b", with_qkv_biases(_7B), "7B", CUT.format("7.72B"), alias="qwen"),
    Preset("qwen-14b", with_qkv_biases(_14B), "14B"),
    Preset("qwen-72b", with_qkv_biases(_72B), "72B", source="the release of November 2023; sizes of its code"),
    known="qwen-14b",
    sizes="Bai et al. 2023, arXiv:2309.16609, table 1; within the training length, past which the code scales by "
    "its logarithm",
    tokenizer=TOKENIZER,
)
QWEN2 = Origin("qwen2", "qwen", 2024, "arXiv:2407.10671, section 2.2; arXiv:2412.15115").lineage(
    "grouped queries, theta 1,000,000",
    Preset("qwen2-0.5b", qwen2(24, 896, 14, 4864, 2, small=True), "0.5B"),
    Preset("qwen2-1.5b", qwen2(28, 1536, 12, 8960, 2, small=True), "1.5B"),
    Preset("qwen2-7b", qwen2(28, 3584, 28, 18_944, 4), "7B", CUT.format("7.62B"), alias="qwen2"),
    Preset("qwen2-72b", qwen2(80, 8192, 64, 29_568, 8, eps=1e-5), "72B", CUT.format("72.71B")),
    qwen25("qwen2.5-0.5b", qwen2(24, 896, 14, 4864, 2, small=True), "0.49B"),
    qwen25("qwen2.5-1.5b", qwen2(28, 1536, 12, 8960, 2, small=True), "1.54B"),
    qwen25("qwen2.5-3b", qwen2(36, 2048, 16, 11_008, 2, small=True), "3.09B"),
    qwen25(
        "qwen2.5-7b",
        qwen2(28, 3584, 28, 18_944, 4, context=LONG),
        "7.61B",
        "7.616B, which the card cuts",
        alias="qwen2.5",
    ),
    qwen25(
        "qwen2.5-14b", qwen2(48, 5120, 40, 13_824, 8, eps=1e-5, context=LONG), "14.7B", "14.77B, which the card cuts"
    ),
    qwen25(
        "qwen2.5-32b",
        qwen2(64, 5120, 40, 27_648, 8, eps=1e-5, context=LONG),
        "32.5B",
        "the released file holds 32.76B; the card's total does not follow from its sizes",
    ),
    qwen25("qwen2.5-72b", qwen2(80, 8192, 64, 29_568, 8, eps=1e-5, context=LONG), "72.7B"),
    known="qwen2-72b",
    sizes="Yang et al. 2024, arXiv:2407.10671, table 1",
    tokenizer=TOKENIZER,
)


def qwen_moe(*sizes: int, n_experts: int, top_k: int, d_shared: int, context: int) -> ModelSpec:
    """LLaMA with biases of queries, keys and values, and experts whose weights are not made to sum to 1."""
    dense = llama(*sizes, vocab_size=151_936, theta=1e6, context=context)
    router = RouterSpec(n_experts=Count(n_experts), top_k=top_k)
    return with_experts(with_qkv_biases(dense), router, gated(d_shared, SiLU()), gate=True)


QWEN_MOE = Origin("qwen-moe", "qwen2", 2024, "arXiv:2407.10671, section 2.2.2").lineage(
    "experts, beside a shared one behind a gate",
    Preset(
        "qwen1.5-moe-a2.7b",
        qwen_moe(24, 2048, 16, 1408, 16, n_experts=60, top_k=4, d_shared=5632, context=8192),
        "14.3B",
        source="Qwen team 2024, Qwen1.5-MoE blog and released configuration (from memory); active parameters: 2.7B",
    ),
    Preset(
        "qwen2-57b-a14b",
        qwen_moe(28, 3584, 28, 2560, 4, n_experts=64, top_k=8, d_shared=20_480, context=131_072),
        "57B",
        source="Yang et al. 2024, arXiv:2407.10671, table 1 (from memory); active parameters: 14B",
    ),
    tokenizer="byte-level BPE, 151,646",
)
