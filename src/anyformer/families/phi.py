"""Phi-2 (Javaheripi et al. 2023), Phi-3 (2404.14219), Phi-4 (2412.08905) and Phi-4-mini (2503.01743)."""

from __future__ import annotations

from anyformer.families.compose import block, changed, language_model, pre_norm, repeat
from anyformer.families.llama import llama
from anyformer.families.mistral import windowed
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LongRoPE,
    RotarySpec,
)
from anyformer.spec import Count, Length, ModelSpec, Width


def phi2(
    *, n_layers: int, d_model: int, n_heads: int, fraction: float = 0.4, vocab_size: int = 51_200, context: int = 2048
) -> ModelSpec:
    """GPT-J's parallel layers with biases everywhere, in the head too, and a share of each head rotating."""
    norm = LayerNormSpec(eps=1e-5)
    heads = GQASpec(
        n_heads=Count(n_heads),
        head_dim=Width(d_model // n_heads),
        bias_query=True,
        bias_key=True,
        bias_value=True,
        bias_output=True,
        rotary=RotarySpec(fraction=fraction),
    )
    attention = AttentionSpec(projection=heads, mask=Causal())
    layer = block(pre_norm(norm, attention, FeedForwardSpec(d_ff=Width(4 * d_model), activation=GELU(form="tanh"))))
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=False,
        head_bias=True,
        context=context,
    )


def phi3(
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_ff: int,
    *,
    vocab_size: int = 32_064,
    theta: float = 10_000.0,
    tied: bool = False,
    context: int = 4096,
) -> ModelSpec:
    """LLaMA 2 (2404.14219, section 2); its window, where it has one, is added by `windowed`."""
    return llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        vocab_size=vocab_size,
        eps=1e-5,
        theta=theta,
        tied=tied,
        context=context,
    )


# How far each of Phi-4-mini's 48 frequencies is stretched beyond 4,096 tokens: its configuration, as released.
PHI_4_MINI_STRETCH = (
    *(1.0, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649),
    *(2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533),
    *(5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651),
    *(14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03),
    *(32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77),
)
LONGROPE = LongRoPE(short=(1.0,) * 48, long=PHI_4_MINI_STRETCH, factor=32.0, original_context=Length(4096))
PHI_3 = "Abdin et al. 2024, arXiv:2404.14219, section 2; window and padded vocabulary as released"
PHI_4 = "Abdin et al. 2024, arXiv:2412.08905, section 3; theta and context as released"
PHI_4_MINI = "Microsoft 2025, arXiv:2503.01743, section 2; stretch of its frequencies as released"
_4_MINI = phi3(32, 3072, 24, 8, 8192, vocab_size=200_064, tied=True, context=131_072)

PRESETS = (
    Preset(
        "phi-2",
        "phi",
        phi2(n_layers=32, d_model=2560, n_heads=32),
        "Javaheripi et al. 2023, the release of Phi-2 and its configuration",
        "2.7B",
        "2.78B, which the release cuts",
        "byte-level BPE (CodeGen's), 50,295 padded to 51,200",
    ),
    Preset(
        "phi3-mini-4k",
        "phi3",
        windowed(phi3(32, 3072, 32, 32, 8192), 2047),
        PHI_3,
        "3.8B",
        None,
        "SentencePiece BPE with byte fallback (LLaMA 2's), 32,064",
    ),
    Preset(
        "phi3-medium-4k",
        "phi3",
        windowed(phi3(40, 5120, 40, 10, 17_920), 2047),
        PHI_3,
        "14B",
        None,
        "SentencePiece BPE with byte fallback (LLaMA 2's), 32,064",
    ),
    Preset(
        "phi4-14b",
        "phi3",
        phi3(40, 5120, 40, 10, 17_920, vocab_size=100_352, theta=250_000.0, context=16_384),
        PHI_4,
        "14B",
        "14.66B, which the paper cuts to the name",
        "byte-level BPE (tiktoken), 100,352",
    ),
    Preset(
        "phi4-mini",
        "phi3",
        changed(_4_MINI, RotarySpec, fraction=0.75, scaling=LONGROPE),
        PHI_4_MINI,
        "3.8B",
        None,
        "byte-level BPE (tiktoken, o200k), 200,064",
    ),
)
