"""Apertus: LLaMA without gates, with an activation that learns its two slopes, and QK-norm (Swiss AI 2025, arXiv:2509.14233);
the text model of Apertus 1.5, which reads codes of images and sounds as tokens."""

from __future__ import annotations

from anyformer.families.compose import edited, feed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import XIELU, GatedFeedForwardSpec, Llama3Scaling
from anyformer.spec import ModelSpec


def apertus(*sizes: int, vocab_size: int = 131_072) -> ModelSpec:
    """LLaMA 3.1 with QK-norm and xIELU feed-forwards without a gate (section 2.1)."""
    scaling = Llama3Scaling(factor=8.0)
    model = llama(*sizes, vocab_size=vocab_size, eps=1e-5, theta=1.2e7, scaling=scaling, context=65_536)
    return with_qk_norms(edited(model, GatedFeedForwardSpec, lambda g: feed(g.d_ff, XIELU(), bias=False)), 1e-5)


APERTUS = Origin("apertus", "llama3.1", 2025, "arXiv:2509.14233, section 2.1").lineage(
    "xIELU without a gate, QK-norm, theta 12,000,000",
    Preset("apertus-8b", apertus(32, 4096, 32, 21_504, 8), "8B", alias="apertus"),
    Preset("apertus-70b", apertus(80, 8192, 64, 43_008, 8), "70B", "70.60B, which the name cuts"),
    sizes="Swiss AI 2025, arXiv:2509.14233, and the released configurations (scaling and context from memory)",
    tokenizer="byte-level BPE, 131,072",
)
APERTUS_1_5 = Origin("apertus-1.5", "apertus", 2026, "transformers' class of Apertus 1.5").lineage(
    "266,752 tokens, codes of images and sounds among them",
    Preset("apertus-1.5-8b", apertus(32, 4096, 32, 14_336, vocab_size=266_752), "8B", alias="apertus-1.5"),
    family="apertus",
    sizes="Swiss AI 2026, the sizes of transformers' class of the text model (those of the release are not known here)",
    tokenizer="266,752",
)
