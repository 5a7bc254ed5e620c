"""Qwen 1, 2 and 2.5 dense, which are LLaMA with biases on q, k and v: arXiv:2309.16609, 2407.10671, 2412.15115."""

from __future__ import annotations

from anyformer.families.compose import changed
from anyformer.families.llama import llama
from anyformer.families.preset import Preset
from anyformer.layers import GQASpec
from anyformer.spec import ModelSpec


def qwen(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    d_ff: int,
    n_kv_heads: int | None = None,
    vocab_size: int = 151_936,
    eps: float = 1e-6,
    theta: float = 10_000.0,
    tied: bool = False,
    context: int = 2048,
) -> ModelSpec:
    """LLaMA with biases where queries, keys and values are made (arXiv:2309.16609, section 2.3)."""
    model = llama(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        vocab_size=vocab_size,
        eps=eps,
        theta=theta,
        tied=tied,
        context=context,
    )
    return changed(model, GQASpec, bias_query=True, bias_key=True, bias_value=True)


def qwen2(
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    d_ff: int,
    *,
    small: bool = False,
    eps: float = 1e-6,
    context: int = 32_768,
) -> ModelSpec:
    """Qwen with grouped heads at every size and theta 1,000,000; the small are tied (arXiv:2407.10671, 2.2)."""
    return qwen(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        vocab_size=151_936 if small else 152_064,
        eps=eps,
        theta=1e6,
        tied=small,
        context=context,
    )


QWEN = "Bai et al. 2023, arXiv:2309.16609, table 1; within the training length, past which the code scales by its logarithm"
QWEN_2 = "Yang et al. 2024, arXiv:2407.10671, table 1"
QWEN_25 = "Yang et al. 2024, arXiv:2412.15115, table 1; totals of the model cards; eps and widths as released"
TOKENIZER = "byte-level BPE (tiktoken), 151,646"
LONG = 131_072


def _preset(name: str, source: str, spec: ModelSpec, published: str, erratum: str | None = None) -> Preset:
    return Preset(name, name.partition("-")[0].removesuffix(".5"), spec, source, published, erratum, TOKENIZER)


_1_8B = qwen(n_layers=24, d_model=2048, n_heads=16, d_ff=5504)
_7B = qwen(n_layers=32, d_model=4096, n_heads=32, d_ff=11_008)
_14B = qwen(n_layers=40, d_model=5120, n_heads=40, d_ff=13_696, vocab_size=152_064)
_72B = qwen(n_layers=80, d_model=8192, n_heads=64, d_ff=24_576, vocab_size=152_064, theta=1e6, context=32_768)

PRESETS = (
    _preset("qwen-1.8b", QWEN, _1_8B, "1.8B"),
    _preset("qwen-7b", QWEN, _7B, "7B", "7.72B, which the paper cuts to the name"),
    _preset("qwen-14b", QWEN, _14B, "14B"),
    _preset("qwen-72b", "the release of November 2023; sizes of its code", _72B, "72B"),
    _preset("qwen2-0.5b", QWEN_2, qwen2(24, 896, 14, 2, 4864, small=True), "0.5B"),
    _preset("qwen2-1.5b", QWEN_2, qwen2(28, 1536, 12, 2, 8960, small=True), "1.5B"),
    _preset("qwen2-7b", QWEN_2, qwen2(28, 3584, 28, 4, 18_944), "7B", "7.62B, which the paper cuts to the name"),
    _preset(
        "qwen2-72b", QWEN_2, qwen2(80, 8192, 64, 8, 29_568, eps=1e-5), "72B", "72.71B, which the paper cuts to the name"
    ),
    _preset("qwen2.5-0.5b", QWEN_25, qwen2(24, 896, 14, 2, 4864, small=True), "0.49B"),
    _preset("qwen2.5-1.5b", QWEN_25, qwen2(28, 1536, 12, 2, 8960, small=True), "1.54B"),
    _preset("qwen2.5-3b", QWEN_25, qwen2(36, 2048, 16, 2, 11_008, small=True), "3.09B"),
    _preset(
        "qwen2.5-7b", QWEN_25, qwen2(28, 3584, 28, 4, 18_944, context=LONG), "7.61B", "7.616B, which the card cuts"
    ),
    _preset(
        "qwen2.5-14b",
        QWEN_25,
        qwen2(48, 5120, 40, 8, 13_824, eps=1e-5, context=LONG),
        "14.7B",
        "14.77B, which the card cuts",
    ),
    _preset(
        "qwen2.5-32b",
        QWEN_25,
        qwen2(64, 5120, 40, 8, 27_648, eps=1e-5, context=LONG),
        "32.5B",
        "the released file holds 32.76B; the card's total does not follow from its sizes",
    ),
    _preset("qwen2.5-72b", QWEN_25, qwen2(80, 8192, 64, 8, 29_568, eps=1e-5, context=LONG), "72.7B"),
)
