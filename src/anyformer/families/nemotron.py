"""Nemotron-4: Parmar et al. 2024, arXiv:2402.16819; Adler et al. 2024, arXiv:2406.11704."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import ByRole, LayerNormSpec, Normal, ReLU2, RotarySpec
from anyformer.spec import ModelSpec

DEVIATION = Normal(scale=0.0134)  # the released configuration's


def nemotron(n_layers: int, d_model: int, n_heads: int, n_kv_heads: int) -> ModelSpec:
    """Pre-norm LayerNorm around 1, half of each head rotating, squared ReLU, no biases (2402.16819, section 2)."""
    norm = LayerNormSpec(eps=1e-5, weight_offset=1.0)
    attention = attend(n_heads, n_kv_heads, rotary=RotarySpec(fraction=0.5))
    layer = serial(norm, attention, feed(4 * d_model, ReLU2(), bias=False))
    start = ByRole(table=DEVIATION, matrix=DEVIATION)
    return language_model(256_000, d_model, repeat(layer, n_layers), norm, tied=False, init=start, context=4096)


NEMOTRON4 = Origin("nemotron4", "gpt3", 2024, "arXiv:2402.16819, section 2").lineage(
    "rotary positions, squared ReLU, grouped queries, no biases, untied",
    Preset(
        "nemotron4-15b",
        nemotron(32, 6144, 48, 8),
        "15.6B",
        "the paper's 3.2B + 12.5B are rounded each",
        source="Parmar et al. 2024, arXiv:2402.16819, table 1 (3.2B in the tables and 12.5B elsewhere)",
        alias="nemotron4",
    ),
    Preset(
        "nemotron4-340b",
        nemotron(96, 18_432, 96, 8),
        "341.0B",
        source="Adler et al. 2024, arXiv:2406.11704, table 1 (9.4B in the tables and 331.6B elsewhere)",
    ),
    family="nemotron",
    tokenizer="SentencePiece BPE with byte fallback, 256,000",
)
