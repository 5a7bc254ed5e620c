"""EXAONE 3 (arXiv:2408.03541), a LLaMA; EXAONE 4, OLMo 2's norms behind the branches with Qwen 3's of each head
(arXiv:2507.11407); and K-EXAONE, its mixture."""

from __future__ import annotations

from anyformer.families.compose import changed, turning_windows
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import Llama3Scaling, RMSNormSpec, RouterSpec
from anyformer.spec import BranchSpec, ModelSpec, SublayerSpec


def exaone(*sizes: int, tied: bool = False) -> ModelSpec:
    """LLaMA 3.1 with 102,400 tokens (arXiv:2412.04862, section 2.1)."""
    scaling = Llama3Scaling(factor=8.0)
    return llama(*sizes, vocab_size=102_400, eps=1e-5, theta=1e6, scaling=scaling, tied=tied, context=32_768)


def exaone4(*sizes: int, tied: bool = False, context: int = 131_072) -> ModelSpec:
    """LLaMA with an RMSNorm after each branch instead of before, and one of each head (arXiv:2507.11407, section 2.1)."""
    scaling = Llama3Scaling(factor=16.0)
    model = llama(*sizes, vocab_size=102_400, eps=1e-5, theta=1e6, scaling=scaling, tied=tied, context=context)
    model = changed(changed(model, SublayerSpec, norm_in=None), BranchSpec, norm_out=RMSNormSpec(eps=1e-5))
    return with_qk_norms(model, 1e-5)


_3 = llama(32, 4096, 32, 14_336, 8, vocab_size=102_400, eps=1e-5, theta=5e5, context=4096)
EXAONE = Origin("exaone", "llama3.1", 2024, "arXiv:2408.03541, section 2.1").lineage(
    "102,400 tokens",
    Preset(
        "exaone-3.0-7.8b",
        _3,
        "7.8B",
        source="LG AI Research 2024, arXiv:2408.03541, table 1 (eps from memory)",
    ),
    Preset("exaone-3.5-2.4b", exaone(30, 2560, 32, 7168, 8, tied=True), "2.4B"),
    Preset("exaone-3.5-32b", exaone(64, 5120, 40, 27_392, 8), "32B", alias="exaone"),
    sizes="LG AI Research 2024, arXiv:2412.04862, table 1, and the released configurations (theta and scaling from memory)",
    tokenizer="byte-level BPE, 102,400",
)
EXAONE4 = Origin("exaone4", "exaone", 2025, "arXiv:2507.11407, section 2.1").lineage(
    "norms after each branch instead of before, QK-norm; in the 32B three windows to a layer without positions",
    Preset("exaone-4.0-1.2b", exaone4(30, 2048, 32, 4096, 8, tied=True, context=65_536), "1.28B"),
    Preset("exaone-4.0-32b", turning_windows(exaone4(64, 5120, 40, 27_392, 8), 4096), "32.0B", alias="exaone4"),
    sizes="LG AI Research 2025, arXiv:2507.11407, table 1, and the released configurations (scaling and context from memory)",
    tokenizer="byte-level BPE, 102,400",
)


def exaone_moe(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1) -> ModelSpec:
    """EXAONE 4's attention with norms before the branches, and after the dense layers experts beside a shared one."""
    plain = llama(*sizes, head_dim=128, vocab_size=153_600, eps=1e-5, theta=1e6, context=262_144)
    return experts_after(turning_windows(with_qk_norms(plain, 1e-5), 128), n_dense, choice, d_expert, d_expert)


EXAONE_MOE = Origin("exaone-moe", "exaone4", 2025, "the release of K-EXAONE, December 2025, from memory").lineage(
    "norms before each branch again, 128 experts beside a shared one, chosen as DeepSeek-V3's, windows of 128",
    Preset(
        "k-exaone-236b-a23b",
        exaone_moe(48, 6144, 64, 18_432, 8, d_expert=2048, choice=router(128, 8, 2.5)),
        "236B",
        "236.57B, which the name cuts",
    ),
    family="exaone4",
    sizes="LG AI Research 2025, K-EXAONE (all from memory, unverified); active parameters: 23B",
    tokenizer="byte-level BPE, 153,600",
)
