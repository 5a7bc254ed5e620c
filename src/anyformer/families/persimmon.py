"""Models of squared ReLU without a gate between LayerNorms: Persimmon (Adept 2023), Jais 2 (2025)."""

from __future__ import annotations

from anyformer.families.compose import attend, changed, feed, language_model, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GQASpec, LayerNormSpec, ReLU2, RotarySpec
from anyformer.spec import ModelSpec

NORM = LayerNormSpec(eps=1e-5)


def jais2(n_layers: int, d_model: int, n_heads: int, d_ff: int, *, vocab_size: int = 150_272) -> ModelSpec:
    """Pre-norm LayerNorm, rotary positions, biases everywhere, untied."""
    layer = serial(NORM, attend(n_heads, bias=True, rotary=RotarySpec()), feed(d_ff, ReLU2()))
    return language_model(vocab_size, d_model, repeat(layer, n_layers), NORM, tied=False, context=8192)


def persimmon(n_layers: int, d_model: int, n_heads: int, d_ff: int) -> ModelSpec:
    """That with a LayerNorm over each head's queries and keys, half of a head rotating (the release of September 2023)."""
    model = changed(
        jais2(n_layers, d_model, n_heads, d_ff, vocab_size=262_144), GQASpec, norm_query=NORM, norm_key=NORM
    )
    return changed(model, RotarySpec, fraction=0.5, theta=25_000.0).but(context=16_384)


PERSIMMON = Origin("persimmon", "gpt-neox", 2023, "the release of Persimmon-8B, September 2023, from memory").lineage(
    "squared ReLU, QK-norm, half of each head rotates, 262,144 tokens",
    Preset(
        "persimmon-8b",
        persimmon(36, 4096, 64, 16_384),
        "8B",
        "9.40B with both tables of words, 1.07B each, of which the name counts one",
        alias="persimmon",
    ),
    sizes="Adept 2023, the release of Persimmon-8B (theta, context and name from memory)",
    tokenizer="SentencePiece unigram, 262,144",
)
JAIS2 = Origin("jais2", "gpt-neox", 2025, "transformers' class of Jais 2").lineage(
    "squared ReLU, feed-forwards eight times as wide, all features rotate, 150,272 tokens",
    Preset("jais-2-8b", jais2(32, 3328, 26, 26_624), "8B", alias="jais2"),
    family="persimmon",
    sizes="Jais 2, 2025, the sizes of transformers' class (name from memory; theta is the class's)",
    tokenizer="byte-level BPE, 150,272",
)
