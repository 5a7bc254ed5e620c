"""Models that LLaMA's architecture expresses whole: SmolLM2 (2502.02737), Yi (2403.04652), Reka Flash 3."""

from __future__ import annotations

from functools import partial

from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama

smollm2 = partial(llama, vocab_size=49_152, eps=1e-5, theta=1e5, tied=True, context=8192)
yi = partial(llama, vocab_size=64_000, eps=1e-5, theta=5e6, context=4096)
reka = partial(llama, head_dim=96, vocab_size=100_352, eps=1e-5, theta=8e6, context=32_768)

SMOLLM2 = Origin("smollm2", "llama2", 2025, "arXiv:2502.02737, section 4").lineage(
    "49,152 tokens, tied tables, theta 130,000",
    Preset("smollm2-135m", smollm2(30, 576, 9, 1536, 3), "135M", alias="smollm2"),
    Preset("smollm2-360m", smollm2(32, 960, 15, 2560, 5), "360M", "361.8M, which the name cuts"),
    Preset("smollm2-1.7b", smollm2(24, 2048, 32, 8192, 32, theta=1.3e5), "1.7B"),
    sizes="Allal et al. 2025, arXiv:2502.02737; sizes, eps and thetas as released",
    tokenizer="byte-level BPE, 49,152",
)
YI = Origin("yi", "llama2", 2024, "arXiv:2403.04652, section 2.3").lineage(
    "64,000 tokens, theta 5,000,000, grouped queries at every size",
    Preset("yi-6b", yi(32, 4096, 32, 11_008, 4), "6B", alias="yi"),
    Preset("yi-9b", yi(48, 4096, 32, 11_008, 4), "9B"),
    Preset("yi-34b", yi(60, 7168, 56, 20_480, 8), "34B"),
    sizes="01.AI 2024, arXiv:2403.04652, table 1; the 9B is the 6B with 48 layers; eps and theta as released",
    tokenizer="SentencePiece BPE with byte fallback, 64,000",
)
REKA = Origin("reka", "llama2", 2025, "the release of Reka Flash 3, from memory").lineage(
    "100,352 tokens, heads of 96, theta 8,000,000",
    Preset("reka-flash-3", reka(44, 6144, 64, 19_648, 8), "21B"),
    sizes="Reka 2025, the release of Reka Flash 3; theta from memory, unverified; its lineage is arXiv:2404.12387",
    tokenizer="byte-level BPE (tiktoken), 100,352",
)
