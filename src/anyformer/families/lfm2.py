"""LFM2: gated short convolutions, and attention in every third layer or so (Liquid AI 2025, arXiv:2511.23404)."""

from __future__ import annotations

from anyformer.families.compose import elsewhere
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen3 import with_qk_norms
from anyformer.layers import ShortConvolutionSpec
from anyformer.spec import ModelSpec

ATTENDING = (2, 5, 8, 10, 12, 14)  # of sixteen layers


def lfm2(*sizes: int, attending: tuple[int, ...] = ATTENDING) -> ModelSpec:
    """LLaMA with QK-norm and tied tables, whose other layers than the `attending` have convolutions (section 2)."""
    plain = llama(*sizes, vocab_size=65_536, eps=1e-5, theta=1e6, tied=True, context=128_000)
    return elsewhere(with_qk_norms(plain, eps=1e-5), attending, ShortConvolutionSpec())


LFM2 = Origin("lfm2", "qwen3", 2025, "arXiv:2511.23404, section 2, from memory").lineage(
    "gated convolutions over three tokens in ten of sixteen layers; tied tables",
    Preset("lfm2-350m", lfm2(16, 1024, 16, 4608, 8), "350M", "354.5M, which the release rounds to the name"),
    Preset("lfm2-700m", lfm2(16, 1536, 24, 6912, 8), "700M", "742.5M, which the release rounds to the name"),
    Preset("lfm2-1.2b", lfm2(16, 2048, 32, 8192, 8), "1.2B", alias="lfm2"),
    sizes="Liquid AI, July 2025, the released configurations; which layers attend from memory",
    tokenizer="byte-level BPE, 65,536",
)
