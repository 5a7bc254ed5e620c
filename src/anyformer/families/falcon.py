"""Falcon: Almazrouei et al. 2023, arXiv:2311.16867; RefinedWeb, arXiv:2306.01116; Falcon 2, arXiv:2407.14885."""

from __future__ import annotations

from functools import partial
from typing import Literal

from anyformer.families.compose import attend, block, feed, language_model, parallel, pre_norm, repeat, serial
from anyformer.families.lineage import Facts, Origin, Preset
from anyformer.layers import GELU, ALiBiSpec, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec, ScaleSpec

Wiring = Literal["serial", "one norm", "two norms"]
ALIBI = ALiBiSpec(scale=ScaleSpec(power=-0.5), rounding="bfloat16")


def falcon(
    n_layers: int,
    d_model: int,
    n_heads: int,
    n_kv_heads: int,
    *,
    vocab_size: int = 65_024,
    wiring: Wiring = "two norms",
    rotary: RotarySpec | None = None,
    bias: bool = False,
    tied: bool = True,
    context: int = 2048,
) -> ModelSpec:
    """Attention beside the feed-forward, on one norm or on one each, or before it; no `rotary` means ALiBi."""
    norm = LayerNormSpec(eps=1e-5)
    grouped = None if n_kv_heads == n_heads else n_kv_heads
    attention = attend(n_heads, grouped, bias=bias, rotary=rotary, scores=() if rotary else (ALIBI,))
    after = feed(4 * d_model, GELU(), bias=bias)
    layer = {
        "serial": serial(norm, attention, after),
        "one norm": block(pre_norm(norm, attention, after)),
        "two norms": block(parallel(norm, attention, after)),
    }[wiring]
    return language_model(vocab_size, d_model, repeat(layer, n_layers), norm, tied=tied, context=context)


# The models of the RefinedWeb paper: ALiBi, biases, as many key/value heads as heads, serial.
refined_web = partial(falcon, wiring="serial", bias=True)
WEB = "Penedo et al. 2023, arXiv:2306.01116, section 4.1; released config.json (from memory)"
BPE = "byte-level BPE, 65,024"
PLAIN = RotarySpec()
_11B = falcon(60, 4096, 32, 8, wiring="one norm", rotary=RotarySpec(theta=500_042.0), tied=False, context=8192)


def _training(rate: str, batch: str, tokens: str) -> Facts:
    return {
        "source": "Almazrouei et al. 2023, arXiv:2311.16867, and the model cards (from memory)",
        "optimiser": "AdamW, decay 0.1",
        "z-loss": "1e-4",
        "schedule": f"over 4B tokens to {rate}, then a cosine to a tenth",
        "batch": f"{batch} sequences of 2,048 tokens, grown over 100B tokens",
        "pretraining tokens": tokens,
    }


OF_40B, OF_180B = _training("1.85e-4", "1,152", "1T"), _training("1.25e-4", "2,048", "3.5T")
_40B, _180B = falcon(60, 8192, 128, 8, rotary=PLAIN), falcon(80, 14_848, 232, 8, rotary=PLAIN)

FALCON_RW = Origin("falcon-rw", "gpt3", 2023, "arXiv:2306.01116, section 4.1").lineage(
    "ALiBi, every layer dense",
    Preset(
        "falcon-rw-1b",
        refined_web(24, 2048, 32, 32, vocab_size=50_304),
        "1.3B",
        tokenizer="byte-level BPE of GPT-2, padded to 50,304",
    ),
    Preset("falcon-rw-7b", refined_web(36, 4096, 64, 64), "7.5B"),
    family="falcon",
    sizes=WEB,
    tokenizer=BPE,
)
FALCON = Origin("falcon", "palm", 2023, "arXiv:2311.16867, section 4").lineage(
    "GELU without a gate, grouped queries above 7B",
    Preset("falcon-7b", falcon(32, 4544, 71, 1, wiring="one norm", rotary=PLAIN), "7B", alias="falcon"),
    Preset("falcon-40b", _40B, "40B", "41.3B, which the paper cuts to the name", training=OF_40B),
    Preset("falcon-180b", _180B, "180B", "178.6B with one table for tokens and head", training=OF_180B),
    sizes="Almazrouei et al. 2023, arXiv:2311.16867, table 15 and the released config.json",
    tokenizer=BPE,
)
FALCON2 = Origin("falcon2", "falcon", 2024, "arXiv:2407.14885, section 2").lineage(
    "one norm for both branches, untied, 8,192 tokens",
    Preset("falcon2-11b", _11B, "11B"),
    family="falcon",
    sizes="Malartic et al. 2024, arXiv:2407.14885, table 2",
    tokenizer=BPE,
)
