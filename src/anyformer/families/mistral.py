"""Mistral 7B, which is LLaMA with grouped heads and, at first, a window: Jiang et al. 2023, arXiv:2310.06825."""

from __future__ import annotations

from functools import partial

from anyformer.families.compose import changed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import AttentionSpec, Causal, SlidingWindow
from anyformer.spec import ModelSpec, Window

# LLaMA 2 with 8 key/value heads and a d_ff of 3.5 d_model (table 1).
mistral = partial(llama, 32, 4096, 32, 14_336, 8, head_dim=128, eps=1e-5, context=32_768)


def windowed(model: ModelSpec, size: int) -> ModelSpec:
    """The model with every layer seeing the last `size` keys (section 2)."""
    return changed(model, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(size)))


LATER = "the releases of March and May 2024 (from memory): theta 1,000,000, no window"
BPE = "SentencePiece BPE with byte fallback, {}"

MISTRAL = Origin("mistral", "llama2", 2023, "arXiv:2310.06825, section 2").lineage(
    "a window of 4,096 in every layer, grouped queries",
    Preset("mistral-7b-v0.1", windowed(mistral(context=8192), 4096), "7B", alias="mistral"),
    sizes="Jiang et al. 2023, arXiv:2310.06825, table 1",
    tokenizer=BPE.format("32,000"),
)
MISTRAL_V0_2 = Origin("mistral-v0.2", "mistral", 2024, "the releases of 2024, from memory").lineage(
    "no window, theta 1,000,000, 32,768 tokens",
    Preset("mistral-7b-v0.2", mistral(theta=1e6), "7B", tokenizer=BPE.format("32,000")),
    Preset("mistral-7b-v0.3", mistral(theta=1e6, vocab_size=32_768), "7B", tokenizer=BPE.format("32,768")),
    known="mistral-7b-v0.2",
    family="mistral",
    sizes=LATER,
)
