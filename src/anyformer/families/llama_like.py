"""Models that LLaMA's architecture expresses whole: SmolLM2 (2502.02737), Yi (2403.04652), Reka Flash 3."""

from __future__ import annotations

from anyformer.families.llama import llama
from anyformer.families.preset import Preset
from anyformer.spec import ModelSpec


def smollm2(n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int, theta: float = 1e5) -> ModelSpec:
    """LLaMA with tied tables and 49,152 tokens (arXiv:2502.02737, section 4 and appendix A)."""
    return llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        vocab_size=49_152,
        eps=1e-5,
        theta=theta,
        tied=True,
        context=8192,
    )


def yi(n_layers: int, d_model: int, n_heads: int, n_kv_heads: int, d_ff: int) -> ModelSpec:
    """LLaMA 2 with grouped heads at every size, 64,000 tokens and theta 5,000,000 (arXiv:2403.04652, section 2.3)."""
    return llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        vocab_size=64_000,
        eps=1e-5,
        theta=5e6,
        context=4096,
    )


SMOLLM2 = "Allal et al. 2025, arXiv:2502.02737; sizes, eps and thetas as released"
YI = "01.AI 2024, arXiv:2403.04652, table 1; the 9B is the 6B with 48 layers; eps and theta as released"
REKA = "Reka 2025, the release of Reka Flash 3; theta from memory, unverified; its lineage is arXiv:2404.12387"
REKA_FLASH_3 = llama(
    n_layers=44,
    d_model=6144,
    n_heads=64,
    n_kv_heads=8,
    head_dim=96,
    d_ff=19_648,
    vocab_size=100_352,
    eps=1e-5,
    theta=8e6,
    context=32_768,
)

PRESETS = (
    Preset("smollm2-135m", "smollm2", smollm2(30, 576, 9, 3, 1536), SMOLLM2, "135M", None, "byte-level BPE, 49,152"),
    Preset(
        "smollm2-360m",
        "smollm2",
        smollm2(32, 960, 15, 5, 2560),
        SMOLLM2,
        "360M",
        "361.8M, which the name cuts",
        "byte-level BPE, 49,152",
    ),
    Preset(
        "smollm2-1.7b",
        "smollm2",
        smollm2(24, 2048, 32, 32, 8192, 1.3e5),
        SMOLLM2,
        "1.7B",
        None,
        "byte-level BPE, 49,152",
    ),
    Preset("yi-6b", "yi", yi(32, 4096, 32, 4, 11_008), YI, "6B", None, "SentencePiece BPE with byte fallback, 64,000"),
    Preset("yi-9b", "yi", yi(48, 4096, 32, 4, 11_008), YI, "9B", None, "SentencePiece BPE with byte fallback, 64,000"),
    Preset(
        "yi-34b", "yi", yi(60, 7168, 56, 8, 20_480), YI, "34B", None, "SentencePiece BPE with byte fallback, 64,000"
    ),
    Preset("reka-flash-3", "reka", REKA_FLASH_3, REKA, "21B", None, "byte-level BPE (tiktoken), 100,352"),
)
