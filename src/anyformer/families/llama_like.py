"""Models that LLaMA's architecture expresses whole or nearly so: SmolLM2 (2502.02737), Yi (2403.04652), Reka Flash 3,
InternLM3, IQuest-Coder, SmolLM3 with layers that rotate nothing, Seed-OSS with biases, ERNIE 4.5 and Helium with neighbouring
pairs, ERNIE's mixture, AFM without gates, CWM with windows."""

from __future__ import annotations

from functools import partial

from anyformer.families.compose import changed, edited, feed, layered, windowed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.families.qwen2 import with_qkv_biases
from anyformer.layers import DynamicNTK, GatedFeedForwardSpec, GQASpec, Llama3Scaling, ReLU2, RotarySpec, YaRN
from anyformer.spec import Length, ModelSpec

smollm2 = partial(llama, vocab_size=49_152, eps=1e-5, theta=1e5, tied=True, context=8192)
yi = partial(llama, vocab_size=64_000, eps=1e-5, theta=5e6, context=4096)
reka = partial(llama, head_dim=96, vocab_size=100_352, eps=1e-5, theta=8e6, context=32_768)
internlm3 = partial(
    llama,
    head_dim=128,
    vocab_size=128_512,
    eps=1e-5,
    theta=5e7,
    scaling=DynamicNTK(factor=6.0, original_context=Length(32_768)),
)
iquest_coder = partial(llama, vocab_size=76_800, eps=1e-5, theta=5e5, context=131_072)


def smollm3(*sizes: int) -> ModelSpec:
    """LLaMA that rotates nothing in every fourth layer (Yang et al. 2025, arXiv:2501.18795, from memory)."""
    model = llama(*sizes, vocab_size=128_256, theta=5e6, tied=True, context=65_536)
    return layered(model, *[model] * 3, changed(model, GQASpec, rotary=None))


def seed_oss(*sizes: int) -> ModelSpec:
    """LLaMA with biases of queries, keys and values, and heads wider together than the stream."""
    return with_qkv_biases(llama(*sizes, head_dim=128, vocab_size=155_136, theta=1e7, context=524_288))


def ernie4_5(*sizes: int) -> ModelSpec:
    """LLaMA whose neighbouring features rotate in pairs, with heads of 128 and tied tables."""
    model = llama(*sizes, head_dim=128, vocab_size=103_424, eps=1e-5, theta=5e5, tied=True, context=131_072)
    return changed(model, RotarySpec, layout="interleaved")


def arcee(*sizes: int) -> ModelSpec:
    """LLaMA with squared ReLUs and no gates."""
    model = llama(*sizes, vocab_size=128_004, eps=1e-5, context=65_536, scaling=YaRN(factor=20.0))
    return edited(model, GatedFeedForwardSpec, lambda gated: feed(gated.d_ff, ReLU2(), bias=False))


def helium(*sizes: int) -> ModelSpec:
    """LLaMA whose neighbouring features rotate in pairs."""
    return changed(
        llama(*sizes, vocab_size=48_000, eps=1e-8, theta=1e5, context=4096), RotarySpec, layout="interleaved"
    )


def cwm(*sizes: int) -> ModelSpec:
    """LLaMA 3.1 with three windows of 8,192 after each layer that sees everything, further stretched (arXiv:2510.02387)."""
    scaling = Llama3Scaling(factor=16.0)
    model = llama(*sizes, head_dim=128, vocab_size=128_256, eps=1e-5, theta=1e6, scaling=scaling, context=131_072)
    return layered(model, model, *[windowed(model, 8192)] * 3)


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
INTERNLM3 = Origin("internlm3", "llama2", 2025, "the release of InternLM3, January 2025, from memory").lineage(
    "128,512 tokens, two heads of keys and values, frequencies stretched as a text grows",
    Preset(
        "internlm3-8b",
        internlm3(48, 4096, 32, 10_240, 2, context=32_768),
        "8B",
        "8.80B, which the name cuts",
        alias="internlm3",
    ),
    sizes="Shanghai AI Laboratory 2025, the released configuration (theta and scaling from memory)",
    tokenizer="SentencePiece BPE, 128,512",
)
IQUEST_CODER = Origin("iquest-coder", "llama2", 2026, "transformers' class of IQuest-Coder").lineage(
    "76,800 tokens, wide feed-forwards",
    Preset("iquest-coder-v1-40b", iquest_coder(80, 5120, 40, 27_648, 8), "40B", alias="iquest-coder"),
    sizes="IQuest Lab 2026, the sizes of transformers' class (theta from memory)",
    tokenizer="byte-level BPE, 76,800",
)
SMOLLM3 = Origin("smollm3", "smollm2", 2025, "the release of SmolLM3, July 2025, from memory").lineage(
    "128,256 tokens, no positions in every fourth layer, theta 5,000,000",
    Preset("smollm3-3b", smollm3(36, 2048, 16, 11_008, 4), "3.08B"),
    sizes="Hugging Face 2025, the released configuration (theta and context from memory)",
    tokenizer="byte-level BPE (LLaMA 3's), 128,256",
)
SEED_OSS = Origin("seed-oss", "llama2", 2025, "the release of Seed-OSS, August 2025, from memory").lineage(
    "155,136 tokens, biases of queries, keys and values, theta 10,000,000",
    Preset("seed-oss-36b", seed_oss(64, 5120, 80, 27_648, 8), "36B"),
    sizes="ByteDance Seed 2025, the released configuration (theta from memory)",
    tokenizer="byte-level BPE, 155,136",
)
ERNIE = Origin("ernie4.5", "llama2", 2025, "the ERNIE 4.5 report, 2025, from memory").lineage(
    "neighbouring features rotate in pairs, heads of 128, tied tables",
    Preset("ernie-4.5-0.3b", ernie4_5(18, 1024, 16, 3072, 2), "0.36B", alias="ernie4.5"),
    sizes="Baidu 2025, the released configuration",
    tokenizer="SentencePiece BPE, 103,424",
)
ARCEE = Origin("arcee", "llama2", 2025, "the release of AFM-4.5B, 2025, from memory").lineage(
    "squared ReLU without a gate, frequencies stretched to 65,536 tokens",
    Preset("afm-4.5b", arcee(36, 2560, 20, 18_432, 4), "4.5B", "4.62B, which the name cuts", alias="arcee"),
    sizes="Arcee AI 2025, the released configuration (YaRN and context from memory)",
    tokenizer="byte-level BPE, 128,004",
)
HELIUM = Origin("helium", "llama2", 2025, "the release of Helium-1, January 2025, from memory").lineage(
    "48,000 tokens of European languages, neighbouring features rotate in pairs, eps 1e-8, theta 100,000",
    Preset("helium-1-2b", helium(24, 2560, 20, 7040), "2B", "2.17B, which the name cuts", alias="helium"),
    sizes="Kyutai 2025, the sizes of transformers' class",
    tokenizer="SentencePiece, 48,000",
)
CWM = Origin("cwm", "llama3.1", 2025, "arXiv:2510.02387, from memory").lineage(
    "three windows of 8,192 after each full layer, theta 1,000,000 stretched sixteen times",
    Preset("cwm-32b", cwm(64, 6144, 48, 21_504, 8), "32B", "32.58B, which the name cuts", alias="cwm"),
    sizes="Meta FAIR 2025, arXiv:2510.02387, the sizes of transformers' class",
    tokenizer="byte-level BPE (LLaMA 3's), 128,256",
)
