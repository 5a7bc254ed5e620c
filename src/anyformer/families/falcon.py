"""Falcon: Almazrouei et al. 2023, arXiv:2311.16867; RefinedWeb, arXiv:2306.01116; Falcon 2, arXiv:2407.14885."""

from __future__ import annotations

from typing import Literal

from anyformer.families.compose import block, language_model, parallel, pre_norm, repeat, with_biases
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    ActivationSpec,
    ALiBiSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    RotarySpec,
)
from anyformer.spec import Count, ModelSpec, ScaleSpec, Width

Wiring = Literal["serial", "one norm", "two norms"]
ALIBI = ALiBiSpec(scale=ScaleSpec(power=-0.5), rounding="bfloat16")


def falcon(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    vocab_size: int = 65_024,
    d_ff: int | None = None,
    wiring: Wiring = "two norms",
    rotary: RotarySpec | None = None,
    activation: ActivationSpec | None = None,
    bias: bool = False,
    eps: float = 1e-5,
    tied: bool = True,
    context: int = 2048,
) -> ModelSpec:
    """Attention beside the feed-forward, on one norm or on one each, or before it; no `rotary` means ALiBi."""
    norm = LayerNormSpec(eps=eps)
    heads = GQASpec(
        n_heads=Count(n_heads), n_kv_heads=None if n_kv_heads == n_heads else Count(n_kv_heads), rotary=rotary
    )
    scores = () if rotary else (ALIBI,)
    attention = AttentionSpec(projection=with_biases(heads, bias, bias), mask=Causal(), scores=scores)
    feed = FeedForwardSpec(
        d_ff=Width(d_ff or 4 * d_model), activation=activation or GELU(), bias_in=bias, bias_out=bias
    )
    layer = {
        "serial": block(pre_norm(norm, attention), pre_norm(norm, feed)),
        "one norm": block(pre_norm(norm, attention, feed)),
        "two norms": block(parallel(norm, attention, feed)),
    }[wiring]
    return language_model(
        vocab_size=vocab_size, d_model=d_model, blocks=repeat(layer, n_layers), norm=norm, tied=tied, context=context
    )


def refined_web(*, n_layers: int, d_model: int, n_heads: int, vocab_size: int) -> ModelSpec:
    """The models of the RefinedWeb paper: ALiBi, biases, as many key/value heads as heads, serial."""
    return falcon(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        vocab_size=vocab_size,
        wiring="serial",
        bias=True,
    )


PAPER = "Almazrouei et al. 2023, arXiv:2311.16867, table 15 and the released config.json"
WEB = "Penedo et al. 2023, arXiv:2306.01116, section 4.1; released config.json (from memory)"
BPE = "byte-level BPE, 65,024"
PLAIN = RotarySpec()

_7B = falcon(n_layers=32, d_model=4544, n_heads=71, n_kv_heads=1, wiring="one norm", rotary=PLAIN)
_40B = falcon(n_layers=60, d_model=8192, n_heads=128, n_kv_heads=8, rotary=PLAIN)
_180B = falcon(n_layers=80, d_model=14_848, n_heads=232, n_kv_heads=8, rotary=PLAIN)
_11B = falcon(
    n_layers=60,
    d_model=4096,
    n_heads=32,
    n_kv_heads=8,
    d_ff=16_384,
    wiring="one norm",
    rotary=RotarySpec(theta=500_042.0),
    tied=False,
    context=8192,
)
_RW_1B = refined_web(n_layers=24, d_model=2048, n_heads=32, vocab_size=50_304)
_RW_7B = refined_web(n_layers=36, d_model=4096, n_heads=64, vocab_size=65_024)

PRESETS = (
    Preset("falcon-rw-1b", "falcon", _RW_1B, WEB, "1.3B", None, "byte-level BPE of GPT-2, padded to 50,304"),
    Preset("falcon-rw-7b", "falcon", _RW_7B, WEB, "7.5B", None, BPE),
    Preset("falcon-7b", "falcon", _7B, PAPER, "7B", None, BPE),
    Preset("falcon-40b", "falcon", _40B, PAPER, "40B", "41.3B, which the paper cuts to the name", BPE),
    Preset("falcon-180b", "falcon", _180B, PAPER, "180B", "178.6B with one table for tokens and head", BPE),
    Preset("falcon2-11b", "falcon", _11B, "Malartic et al. 2024, arXiv:2407.14885, table 2", "11B", None, BPE),
)
