"""dots.llm1, DeepSeek-V3's experts on multi-head attention with QK-norm: Huo et al. 2025, arXiv:2506.05767."""

from __future__ import annotations

from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import RouterSpec
from anyformer.spec import ModelSpec


def dots1(*sizes: int, d_expert: int, choice: RouterSpec) -> ModelSpec:
    """LLaMA with QK-norm; after one dense layer experts beside two shared ones (arXiv:2506.05767, section 2.1)."""
    plain = llama(*sizes, vocab_size=152_064, eps=1e-5, theta=1e7, context=32_768)
    return experts_after(with_qk_norms(plain, 1e-5), 1, choice, d_expert, 2 * d_expert)


DOTS1 = Origin("dots1", "deepseek", 2025, "arXiv:2506.05767, section 2").lineage(
    "QK-norm, 128 experts beside two shared ones, chosen as DeepSeek-V3's; 32,768 tokens",
    Preset(
        "dots.llm1",
        dots1(62, 4096, 32, 10_944, d_expert=1408, choice=router(128, 6, 2.5)),
        "142B",
        "142.77B, which the paper cuts",
    ),
    family="dots",
    sizes="Huo et al. 2025, arXiv:2506.05767, table 1 (eps, theta and factor from memory); active parameters: 14B",
    tokenizer="byte-level BPE (Qwen2.5's), 152,064",
)
