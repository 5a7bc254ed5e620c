"""LLaMA 1 to 3.2, each derived from the one before: arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783."""

from __future__ import annotations

from typing import TypedDict

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    AttentionSpec,
    ByRole,
    Causal,
    GatedFeedForwardSpec,
    GQASpec,
    Llama3Scaling,
    RMSNormSpec,
    RotaryScalingSpec,
    RotarySpec,
    SiLU,
)
from anyformer.spec import Count, ModelSpec, Width


def llama(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    vocab_size: int = 32_000,
    eps: float = 1e-6,
    theta: float = 10_000.0,
    scaling: RotaryScalingSpec | None = None,
    tied: bool = False,
    context: int = 2048,
) -> ModelSpec:
    """Pre-norm RMSNorm, rotary positions, SwiGLU, no biases (arXiv:2302.13971, section 2.2)."""
    norm = RMSNormSpec(eps=eps)
    heads = GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=None if n_kv_heads is None else Count(n_kv_heads),
        head_dim=None if head_dim is None else Width(head_dim),
        rotary=RotarySpec(theta=theta, scaling=scaling),
    )
    layer = block(
        pre_norm(norm, AttentionSpec(projection=heads, mask=Causal())),
        pre_norm(norm, GatedFeedForwardSpec(d_ff=Width(d_ff), activation=SiLU())),
    )
    blocks = repeat(layer, n_layers)
    init = ByRole()  # the papers do not say how weights start; 0.02 is the usual deviation
    return language_model(
        vocab_size=vocab_size, d_model=d_model, blocks=blocks, norm=norm, tied=tied, init=init, context=context
    )


def llama2(*, n_layers: int, d_model: int, n_heads: int, d_ff: int, n_kv_heads: int | None = None) -> ModelSpec:
    """LLaMA with twice the context and eps 1e-5; the 70B groups its queries (arXiv:2307.09288, section 2.2)."""
    return llama(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_ff=d_ff, n_kv_heads=n_kv_heads, eps=1e-5, context=4096
    )


def llama3(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    head_dim: int = 128,
    scaling: RotaryScalingSpec | None = None,
    tied: bool = False,
    context: int = 8192,
) -> ModelSpec:
    """LLaMA 2 with 8 key/value heads at every size, 128,256 tokens, theta 500,000 (arXiv:2407.21783, table 3)."""
    return llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        d_ff=d_ff,
        n_kv_heads=8,
        head_dim=head_dim,
        vocab_size=128_256,
        eps=1e-5,
        theta=500_000.0,
        scaling=scaling,
        tied=tied,
        context=context,
    )


class Size(TypedDict):
    """What sizes of one generation differ in."""

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int


LLAMA_1 = "Touvron et al. 2023, arXiv:2302.13971, table 2"
LLAMA_2 = "Touvron et al. 2023, arXiv:2307.09288, table 1"
LLAMA_3 = "Grattafiori et al. 2024, arXiv:2407.21783, table 3"
LLAMA_32 = "Meta 2024, Llama 3.2 model card; context extended as in arXiv:2407.21783"
SENTENCEPIECE = "SentencePiece BPE with byte fallback, 32,000"
TIKTOKEN = "byte-level BPE (tiktoken), 128,256"
LONG = 131_072

SIZE_7B: Size = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 11_008}
SIZE_13B: Size = {"n_layers": 40, "d_model": 5120, "n_heads": 40, "d_ff": 13_824}
SIZE_70B: Size = {"n_layers": 80, "d_model": 8192, "n_heads": 64, "d_ff": 28_672}
SIZE_8B: Size = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 14_336}
SIZE_405B: Size = {"n_layers": 126, "d_model": 16_384, "n_heads": 128, "d_ff": 53_248}
STRETCH_8 = Llama3Scaling(factor=8.0)
STRETCH_32 = Llama3Scaling(factor=32.0)

_33B = llama(n_layers=60, d_model=6656, n_heads=52, d_ff=17_920)
_65B = llama(n_layers=80, d_model=8192, n_heads=64, d_ff=22_016)
_70B = llama2(**SIZE_70B, n_kv_heads=8)
_1B = llama3(n_layers=16, d_model=2048, n_heads=32, d_ff=8192, head_dim=64, scaling=STRETCH_32, tied=True, context=LONG)
_3B = llama3(n_layers=28, d_model=3072, n_heads=24, d_ff=8192, scaling=STRETCH_32, tied=True, context=LONG)

PRESETS = (
    Preset("llama-7b", "llama", llama(**SIZE_7B), LLAMA_1, "6.7B", None, SENTENCEPIECE),
    Preset("llama-13b", "llama", llama(**SIZE_13B), LLAMA_1, "13.0B", None, SENTENCEPIECE),
    Preset("llama-33b", "llama", _33B, LLAMA_1, "32.5B", None, SENTENCEPIECE),
    Preset("llama-65b", "llama", _65B, LLAMA_1, "65.2B", "65.286B, which the paper truncates", SENTENCEPIECE),
    Preset("llama2-7b", "llama", llama2(**SIZE_7B), LLAMA_2, "7B", None, SENTENCEPIECE),
    Preset("llama2-13b", "llama", llama2(**SIZE_13B), LLAMA_2, "13B", None, SENTENCEPIECE),
    Preset("llama2-70b", "llama", _70B, LLAMA_2, "70B", "68.98B, which the paper rounds to the name", SENTENCEPIECE),
    Preset("llama3-8b", "llama", llama3(**SIZE_8B), LLAMA_3, "8B", None, TIKTOKEN),
    Preset(
        "llama3-70b", "llama", llama3(**SIZE_70B), LLAMA_3, "70B", "70.55B, which the paper cuts to the name", TIKTOKEN
    ),
    Preset("llama3.1-8b", "llama", llama3(**SIZE_8B, scaling=STRETCH_8, context=LONG), LLAMA_3, "8B", None, TIKTOKEN),
    Preset(
        "llama3.1-70b",
        "llama",
        llama3(**SIZE_70B, scaling=STRETCH_8, context=LONG),
        LLAMA_3,
        "70B",
        "70.55B, which the paper cuts to the name",
        TIKTOKEN,
    ),
    Preset(
        "llama3.1-405b",
        "llama",
        llama3(**SIZE_405B, scaling=STRETCH_8, context=LONG),
        LLAMA_3,
        "405B",
        "405.85B, which the paper cuts to the name",
        TIKTOKEN,
    ),
    Preset("llama3.2-1b", "llama", _1B, LLAMA_32, "1.23B", "1.236B, which the card cuts", TIKTOKEN),
    Preset("llama3.2-3b", "llama", _3B, LLAMA_32, "3.21B", None, TIKTOKEN),
)
