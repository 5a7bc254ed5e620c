"""Solar Open, GLM-4.5's mixtures without norms of heads and without dense layers (Upstage 2026)."""

from __future__ import annotations

from anyformer.families.compose import gated
from anyformer.families.glm import router
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.mistral import with_experts
from anyformer.layers import RouterSpec, SiLU
from anyformer.spec import ModelSpec


def solar_open(*sizes: int, choice: RouterSpec) -> ModelSpec:
    """LLaMA with heads of 128, and in every layer experts beside a shared one; the fourth of the sizes is an expert's width."""
    plain = llama(*sizes, head_dim=128, vocab_size=196_608, eps=1e-5, theta=1e6, context=131_072)
    return with_experts(plain, choice, gated(sizes[3], SiLU()))


SOLAR_OPEN = Origin("solar-open", "glm4-moe", 2026, "the Solar Open report, January 2026, from memory").lineage(
    "experts in every layer, whole heads rotate, no biases, 196,608 tokens",
    Preset(
        "solar-open-100b",
        solar_open(48, 4096, 64, 1280, 8, choice=router(128, 8, 1.0)),
        "102B",
        "102.65B, which the report cuts",
    ),
    family="solar",
    sizes="Upstage 2026, the sizes of transformers' class (total from memory); active parameters: 12B",
    tokenizer="byte-level BPE, 196,608",
)
