"""Kolibri 1: EXAONE 4's attention, norms on both sides of each branch, experts chosen by corrected logits (Aleph Alpha 2026)."""

from __future__ import annotations

from anyformer.families.compose import changed, gated, turning_windows
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import RMSNormSpec, RouterSpec, SiLU
from anyformer.spec import BranchSpec, Count, ModelSpec


def kolibri(*sizes: int, n_experts: int) -> ModelSpec:
    """LLaMA with QK-norm and sandwich norms; experts weighed by a sigmoid and chosen by logits with corrections, beside a shared
    one; four windows to a layer that sees everything and rotates nothing (transformers' class)."""
    plain = with_qk_norms(llama(*sizes, head_dim=128, vocab_size=128_000, context=262_144))
    choice = RouterSpec(n_experts=Count(n_experts), top_k=6, score="sigmoid", correction=True, corrects="logits")
    sparse = with_experts(plain, choice, gated(512, SiLU()))
    return turning_windows(changed(sparse, BranchSpec, norm_out=RMSNormSpec()), 513, every=5)


KOLIBRI = Origin("kolibri", "exaone4", 2026, "transformers' class of Kolibri 1").lineage(
    "norms before branches too, experts beside a shared one, chosen by logits with corrections, four windows to a full layer",
    Preset("kolibri-1", kolibri(50, 2560, 48, 512, 4, n_experts=384), alias="kolibri"),
    sizes="Aleph Alpha 2026, the sizes of transformers' class",
    tokenizer="128,000",
)
