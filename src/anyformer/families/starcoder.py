"""Models of code: SantaCoder and StarCoder, GPT-2 with one key for all heads (arXiv:2301.03988, 2305.06161), and StarCoder2
(arXiv:2402.19173)."""

from __future__ import annotations

from anyformer.families.compose import attend, changed, feed, language_model, repeat, serial, window
from anyformer.families.gpt2 import gpt2
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, GQASpec, LayerNormSpec, RotarySpec
from anyformer.spec import Count, ModelSpec, TableSpec, Vocab


def starcoder(n_layers: int, d_model: int, n_heads: int, *, vocab_size: int, context: int) -> ModelSpec:
    """GPT-2 with one head of keys and values (arXiv:2305.06161, section 5)."""
    model = changed(gpt2(n_layers, d_model, n_heads, context=context), GQASpec, n_kv_heads=Count(1))
    return changed(model, TableSpec, rows=Vocab(vocab_size))


def starcoder2(
    n_layers: int, d_model: int, n_heads: int, theta: float, *, n_kv_heads: int, tied: bool = True
) -> ModelSpec:
    """GPT-2 with rotary positions, grouped queries and a window of 4,096 (arXiv:2402.19173, section 6)."""
    norm = LayerNormSpec(eps=1e-5)
    attention = attend(n_heads, n_kv_heads, bias=True, rotary=RotarySpec(theta=theta), mask=window(4096))
    layer = serial(norm, attention, feed(4 * d_model, GELU(form="tanh")))
    return language_model(49_152, d_model, repeat(layer, n_layers), norm, tied=tied, context=16_384)


STARCODER = Origin("starcoder", "gpt2", 2023, "arXiv:2305.06161, section 5").lineage(
    "one head of keys and values for all queries, 8,192 tokens",
    Preset(
        "santacoder-1.1b",
        starcoder(24, 2048, 16, vocab_size=49_280, context=2048),
        "1.1B",
        source="Ben Allal et al. 2023, arXiv:2301.03988, section 5, and the released configuration (from memory)",
    ),
    Preset("starcoderbase-15.5b", starcoder(40, 6144, 48, vocab_size=49_152, context=8192), "15.5B", alias="starcoder"),
    sizes="Li et al. 2023, arXiv:2305.06161, table 8 (from memory)",
    tokenizer="byte-level BPE, 49,152",
)
STARCODER2 = Origin("starcoder2", "starcoder", 2024, "arXiv:2402.19173, section 6").lineage(
    "rotary positions, several heads of keys and values, a window of 4,096",
    Preset("starcoder2-3b", starcoder2(30, 3072, 24, 1e6, n_kv_heads=2), "3B"),
    Preset("starcoder2-7b", starcoder2(32, 4608, 36, 1e6, n_kv_heads=4), "7B"),
    Preset(
        "starcoder2-15b", starcoder2(40, 6144, 48, 1e5, n_kv_heads=4, tied=False), "15B", "15.96B, which the name cuts"
    ),
    sizes="Lozhkov et al. 2024, arXiv:2402.19173, table 6, and the released configurations (thetas from memory)",
    tokenizer="byte-level BPE, 49,152",
)
