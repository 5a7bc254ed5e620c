"""GPT-J: Wang & Komatsuzaki 2021, "GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model"; CodeGen: arXiv:2203.13474."""

from __future__ import annotations

from anyformer.families.compose import attend, block, feed, language_model, pre_norm, repeat
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec

INTERLEAVED = RotarySpec(fraction=0.25, layout="interleaved")


def gptj(n_layers: int, d_model: int, n_heads: int, *, vocab_size: int, rotary: RotarySpec = INTERLEAVED) -> ModelSpec:
    """Attention and feed-forward side by side on one norm; attention without biases, a head with one."""
    norm, after = LayerNormSpec(eps=1e-5), feed(4 * d_model, GELU(form="tanh"))
    blocks = repeat(block(pre_norm(norm, attend(n_heads, rotary=rotary), after)), n_layers)
    return language_model(vocab_size, d_model, blocks, norm, tied=False, head_bias=True, context=2048)


GPTJ = Origin("gptj", "gpt3", 2021, "the repository mesh-transformer-jax, from memory").lineage(
    "attention beside the feed-forward, rotary positions",
    Preset("gptj-6b", gptj(28, 4096, 16, vocab_size=50_400), "6B", alias="gptj"),
    sizes="Wang & Komatsuzaki 2021, the repository mesh-transformer-jax (from memory); released config.json",
    tokenizer="byte-level BPE of GPT-2, 50,257, padded to 50,400",
)


def codegen(n_layers: int, d_model: int, n_heads: int, rotary_dim: int = 64) -> ModelSpec:
    """GPT-J with so many features of each head rotating."""
    rotary = INTERLEAVED.but(fraction=rotary_dim * n_heads / d_model)
    return gptj(n_layers, d_model, n_heads, vocab_size=51_200, rotary=rotary)


CODEGEN = Origin("codegen", "gptj", 2022, "arXiv:2203.13474, section 2").lineage(
    "trained on programs",
    Preset("codegen-350m", codegen(20, 1024, 16, 32), "350M", "356.7M; the name cuts"),
    Preset("codegen-6b", codegen(33, 4096, 16), "6.1B", "7.06B as released, embedding and head of 419M with them"),
    Preset("codegen-16b", codegen(34, 6144, 24), "16.1B", "16.03B as released", alias="codegen"),
    family="gptj",
    sizes="Nijkamp et al. 2022, arXiv:2203.13474, table 6 (printed totals and rotating features from memory); sizes as released",
    tokenizer="byte-level BPE of GPT-2, 50,257 and runs of spaces, padded to 51,200",
)
