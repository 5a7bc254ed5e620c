"""Sarvam 30B and 105B: GLM-4.5's and DeepSeek-V3's mixtures of 128 experts for the languages of India (Sarvam AI 2026)."""

from __future__ import annotations

from anyformer.families.deepseek import deepseek
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import RouterSpec
from anyformer.spec import ModelSpec

VOCABULARY = 262_144


def sarvam_moe(*sizes: int, d_expert: int, choice: RouterSpec) -> ModelSpec:
    """GLM-4.5 with QK-norm, heads of 64, all of which turn, and no biases (transformers' class)."""
    plain = llama(*sizes, head_dim=64, vocab_size=VOCABULARY, theta=8e6, context=131_072)
    return experts_after(with_qk_norms(plain), 1, choice, d_expert, d_expert)


def sarvam_mla(*sizes: int, d_expert: int, choice: RouterSpec) -> ModelSpec:
    """DeepSeek-V3 whose queries come from no latent, and whose experts are not grouped (transformers' class)."""
    return deepseek(*sizes, d_expert=d_expert, router=choice, query_rank=None, mscale=1.0, vocab_size=VOCABULARY)


SIZES = "Sarvam AI 2026, the sizes of transformers' class"
BPE = "byte-level BPE, 262,144"
SARVAM_MOE = Origin("sarvam-moe", "glm4-moe", 2026, "transformers' class of Sarvam 30B").lineage(
    "heads of 64 with QK-norm, whole heads rotate, theta 8,000,000, 262,144 tokens",
    Preset(
        "sarvam-30b",
        sarvam_moe(19, 4096, 64, 8192, 4, d_expert=1024, choice=router(128, 6, 2.5)),
        "30B",
        "32.15B, of which the tables of words are 2.15B",
        alias="sarvam",
    ),
    family="sarvam",
    sizes=SIZES,
    tokenizer=BPE,
)
SARVAM_MLA = Origin("sarvam-mla", "deepseek-v3", 2026, "transformers' class of Sarvam 105B").lineage(
    "128 experts in no groups, queries without a latent, 262,144 tokens",
    Preset(
        "sarvam-105b",
        sarvam_mla(32, 4096, 64, 16_384, d_expert=2048, choice=router(128, 8, 2.5)),
        "105B",
        "106.03B, which the name cuts",
    ),
    family="sarvam",
    sizes=SIZES + " (YaRN from memory)",
    tokenizer=BPE,
)
