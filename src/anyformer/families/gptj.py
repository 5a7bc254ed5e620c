"""GPT-J: Wang & Komatsuzaki 2021, "GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model"."""

from __future__ import annotations

from anyformer.families.compose import attend, block, feed, language_model, pre_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec

INTERLEAVED = RotarySpec(fraction=0.25, layout="interleaved")


def gptj(*, n_layers: int, d_model: int, n_heads: int, vocab_size: int) -> ModelSpec:
    """Attention and feed-forward side by side on one norm; attention without biases, a head with one."""
    norm, after = LayerNormSpec(eps=1e-5), feed(4 * d_model, GELU(form="tanh"))
    blocks = repeat(block(pre_norm(norm, attend(n_heads, rotary=INTERLEAVED), after)), n_layers)
    return language_model(vocab_size, d_model, blocks, norm, tied=False, head_bias=True, context=2048)


GPTJ = Origin("gptj", "gpt3", 2021, "the repository mesh-transformer-jax, from memory").lineage(
    "attention beside the feed-forward, rotary positions",
    Preset("gptj-6b", gptj(n_layers=28, d_model=4096, n_heads=16, vocab_size=50_400), "6B", alias="gptj"),
    sizes="Wang & Komatsuzaki 2021, the repository mesh-transformer-jax (from memory); released config.json",
    tokenizer="byte-level BPE of GPT-2, 50,257, padded to 50,400",
)
