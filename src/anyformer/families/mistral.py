"""Mistral 7B, which is LLaMA with grouped heads and, at first, a window: Jiang et al. 2023, arXiv:2310.06825."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.llama import llama
from anyformer.families.preset import Preset
from anyformer.layers import AttentionSpec, Causal, SlidingWindow
from anyformer.spec import ModelSpec, Window


def mistral(*, theta: float = 10_000.0, vocab_size: int = 32_000, context: int = 32_768) -> ModelSpec:
    """LLaMA 2 with 8 key/value heads and a d_ff of 3.5 d_model (table 1)."""
    return llama(
        n_layers=32,
        d_model=4096,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        d_ff=14_336,
        vocab_size=vocab_size,
        eps=1e-5,
        theta=theta,
        context=context,
    )


def windowed(model: ModelSpec, size: int) -> ModelSpec:
    """The model with every layer seeing the last `size` keys (section 2)."""
    return changed(model, AttentionSpec, mask=Causal() & SlidingWindow(size=Window(size)))


SOURCE = "Jiang et al. 2023, arXiv:2310.06825, table 1"
LATER = "the releases of March and May 2024 (from memory): theta 1,000,000, no window"
BPE = "SentencePiece BPE with byte fallback, {}"

PRESETS = (
    Preset(
        "mistral-7b-v0.1", "mistral", windowed(mistral(context=8192), 4096), SOURCE, "7B", None, BPE.format("32,000")
    ),
    Preset("mistral-7b-v0.2", "mistral", mistral(theta=1e6), LATER, "7B", None, BPE.format("32,000")),
    Preset(
        "mistral-7b-v0.3", "mistral", mistral(theta=1e6, vocab_size=32_768), LATER, "7B", None, BPE.format("32,768")
    ),
)
