"""Trinity, gated attention around DeepSeek-V3's experts, with EXAONE 4's layers and norms on both sides of each branch."""

from __future__ import annotations

from anyformer.families.compose import changed, turning_windows
from anyformer.families.glm import experts_after, router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import AttentionSpec, OutputGateSpec, RMSNormSpec, RouterSpec, TokensSpec
from anyformer.spec import BranchSpec, ModelSpec, ScaleSpec


def afmoe(*sizes: int, d_expert: int, choice: RouterSpec, n_dense: int = 1, window: int = 1024) -> ModelSpec:
    """LLaMA with gated values, QK-norm and sandwich norms; experts beside a shared one after dense layers; three windows to a
    layer that sees everything and rotates nothing; tokens' vectors times the root of d_model (the release, from memory)."""
    plain = with_qk_norms(llama(*sizes, head_dim=128, vocab_size=200_192, eps=1e-5, context=131_072), 1e-5)
    plain = changed(plain, BranchSpec, norm_out=RMSNormSpec(eps=1e-5))
    plain = changed(plain, TokensSpec, scale=ScaleSpec(power=0.5))
    plain = turning_windows(changed(plain, AttentionSpec, gate=OutputGateSpec()), window)
    return experts_after(plain, n_dense, choice, d_expert, d_expert)


TRINITY = Origin("trinity", "exaone4", 2025, "the release of Trinity, December 2025, from memory").lineage(
    "gated values, norms before branches too, experts chosen as DeepSeek-V3's beside a shared one",
    Preset(
        "trinity-mini",
        afmoe(32, 2048, 32, 6144, 4, d_expert=1024, choice=router(128, 8, 2.826), n_dense=2, window=2048),
        "26B",
        alias="trinity",
    ),
    family="afmoe",
    sizes="Arcee AI 2025, the released configuration (all of it from memory); active parameters: 3B",
    tokenizer="byte-level BPE, 200,192",
)
