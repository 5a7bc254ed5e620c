"""Phi-2 (Javaheripi et al. 2023), Phi-3 (2404.14219), Phi-4 (2412.08905) and Phi-4-mini (2503.01743)."""

from __future__ import annotations

from functools import partial

from anyformer.families.compose import attend, block, changed, feed, language_model, pre_norm, repeat, windowed
from anyformer.families.lineage import Origin, Preset
from anyformer.families.llama import llama
from anyformer.layers import GELU, LayerNormSpec, LongRoPE, RotarySpec
from anyformer.spec import Length, ModelSpec


def phi2(n_layers: int, d_model: int, n_heads: int, *, fraction: float = 0.4) -> ModelSpec:
    """GPT-J's parallel layers with biases everywhere, in the head too, and a share of each head rotating."""
    norm, rotary = LayerNormSpec(eps=1e-5), RotarySpec(fraction=fraction)
    attention = attend(n_heads, head_dim=d_model // n_heads, bias=True, rotary=rotary)
    blocks = repeat(block(pre_norm(norm, attention, feed(4 * d_model, GELU(form="tanh")))), n_layers)
    return language_model(51_200, d_model, blocks, norm, tied=False, head_bias=True, context=2048)


# LLaMA 2 (2404.14219, section 2); its window, where it has one, is added by `windowed`.
phi3 = partial(llama, vocab_size=32_064, eps=1e-5, context=4096)

# How far each of Phi-4-mini's 48 frequencies is stretched beyond 4,096 tokens: its configuration, as released.
PHI_4_MINI_STRETCH = (
    *(1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649),
    *(2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533),
    *(5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651),
    *(14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03),
    *(32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77),
)
LONGROPE = LongRoPE(short=(1.0,) * 48, long=PHI_4_MINI_STRETCH, factor=32.0, original_context=Length(4096))
PHI_4_MINI = phi3(32, 3072, 24, 8192, 8, vocab_size=200_064, tied=True, context=131_072)

PHI = Origin("phi", "gptj", 2023, "the release of Phi-2, from memory").lineage(
    "a share of each head rotates, biases everywhere",
    Preset("phi-2", phi2(32, 2560, 32), "2.7B", "2.78B, which the release cuts"),
    sizes="Javaheripi et al. 2023, the release of Phi-2 and its configuration",
    tokenizer="byte-level BPE (CodeGen's), 50,295 padded to 51,200",
)
PHI3 = Origin("phi3", "llama2", 2024, "arXiv:2404.14219, section 2").lineage(
    "a window of 2,047",
    Preset("phi3-mini-4k", windowed(phi3(32, 3072, 32, 8192, 32), 2047), "3.8B", alias="phi3"),
    Preset("phi3-medium-4k", windowed(phi3(40, 5120, 40, 17_920, 10), 2047), "14B"),
    sizes="Abdin et al. 2024, arXiv:2404.14219, section 2; window and padded vocabulary as released",
    tokenizer="SentencePiece BPE with byte fallback (LLaMA 2's), 32,064",
)
PHI4 = Origin("phi4", "phi3", 2024, "arXiv:2412.08905, section 3").lineage(
    "no window, 100,352 tokens, theta 250,000",
    Preset(
        "phi4-14b",
        phi3(40, 5120, 40, 17_920, 10, vocab_size=100_352, theta=250_000.0, context=16_384),
        "14B",
        "14.66B, which the paper cuts to the name",
        alias="phi4",
    ),
    family="phi3",
    sizes="Abdin et al. 2024, arXiv:2412.08905, section 3; theta and context as released",
    tokenizer="byte-level BPE (tiktoken), 100,352",
)
PHI4_MINI = Origin("phi4-mini", "phi3", 2025, "arXiv:2503.01743, section 2").lineage(
    "three quarters of each head rotate, stretched to 131,072 tokens, tied tables",
    Preset("phi4-mini", changed(PHI_4_MINI, RotarySpec, fraction=0.75, scaling=LONGROPE), "3.8B"),
    family="phi3",
    sizes="Microsoft 2025, arXiv:2503.01743, section 2; stretch of its frequencies as released",
    tokenizer="byte-level BPE (tiktoken, o200k), 200,064",
)
