"""GPT-NeoX-20B (Black et al. 2022, arXiv:2204.06745), Pythia (Biderman et al. 2023, arXiv:2304.01373), GPT-NeoX-Japanese."""

from __future__ import annotations

from anyformer.families.compose import (
    attend,
    block,
    changed,
    feed,
    language_model,
    parallel,
    repeat,
    serial,
    with_layers,
)
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, FeedForwardSpec, GQASpec, LayerNormSpec, RotarySpec
from anyformer.spec import ModelSpec


def gpt_neox(n_layers: int, d_model: int, n_heads: int, vocab_size: int = 50_304) -> ModelSpec:
    """X + attention(norm(x)) + feed-forward(norm'(x)), a quarter of each head rotating (arXiv:2204.06745, 2.1)."""
    norm = LayerNormSpec(eps=1e-5)
    attention = attend(n_heads, bias=True, rotary=RotarySpec(fraction=0.25))
    layer = block(parallel(norm, attention, feed(4 * d_model, GELU())))
    # The papers start matrices at √(2/5d) and outputs at 2/(n_layers √d); the released files say 0.02, as is used here.
    return language_model(vocab_size, d_model, repeat(layer, n_layers), norm, tied=False, context=2048)


def gpt_neox_japanese(n_layers: int, d_model: int, n_heads: int, vocab_size: int) -> ModelSpec:
    """Branches in turn, whole heads rotating, one bias of linear maps: that of what the last layer's attention writes."""
    norm = LayerNormSpec(eps=1e-5)
    layer = serial(norm, attend(n_heads, rotary=RotarySpec()), feed(4 * d_model, GELU(), bias=False))
    model = language_model(vocab_size, d_model, (layer,), norm, tied=True, context=2048)
    return biased_last(model, n_layers)


def biased_last(model: ModelSpec, n_layers: int) -> ModelSpec:
    """So many layers like the model's first, the last of which has a bias where its attention writes."""
    layer = model.stack.blocks[0]
    return with_layers(model, (*[layer] * (n_layers - 1), changed(layer, GQASpec, bias_output=True)))


BPE = "byte-level BPE trained on the Pile, 50,257 and spaces"
TRAINING = {
    "source": "Black et al. 2022, arXiv:2204.06745, appendix B; Biderman et al. 2023, arXiv:2304.01373 (from memory)",
    "precision": "float16 with a dynamic loss scale; the recipe has bf16",
    "optimiser state": "ZeRO stage 1",
}
_20B = changed(gpt_neox(44, 6144, 64, 50_432), FeedForwardSpec, activation=GELU(form="tanh"))

GPT_NEOX = Origin("gpt-neox", "gptj", 2022, "arXiv:2204.06745, section 2.1").lineage(
    "a norm for each branch, a quarter of each head rotates",
    Preset("gpt-neox-20b", _20B, "20B", "20.55B, which the paper cuts to the name", alias="gpt-neox"),
    family="gpt_neox",
    sizes="Black et al. 2022, arXiv:2204.06745, section 2 and table 1 (vocabulary padded to 50,432)",
    tokenizer=BPE,
    training=TRAINING,
)
GPT_NEOX_JAPANESE = Origin("gpt-neox-japanese", "gpt-neox", 2022, "abeja/gpt-neox-japanese-2.7b, config.json").lineage(
    "branches in turn, whole heads rotate, one table, no biases but the last attention's",
    Preset(
        "gpt-neox-japanese-2.7b",
        gpt_neox_japanese(32, 2560, 32, 32_000),
        "2.7B",
        "2.60B on one table; the name counts it twice",
        alias="gpt-neox-japanese",
    ),
    family="gpt_neox",
    sizes="ABEJA 2022, abeja/gpt-neox-japanese-2.7b, config.json",
    tokenizer="sub-words of Japanese and bytes, 32,000",
)
PYTHIA = Origin("pythia", "gpt-neox", 2023, "arXiv:2304.01373, section 2").lineage(
    "GELU not approximated; eight sizes on the same data",
    Preset("pythia-70m", gpt_neox(6, 512, 8), "70M"),
    Preset("pythia-160m", gpt_neox(12, 768, 12), "160M", "162M, which the name rounds"),
    Preset("pythia-410m", gpt_neox(24, 1024, 16), "410M", "405M, which the name rounds"),
    Preset("pythia-1b", gpt_neox(16, 2048, 8), "1.0B"),
    Preset("pythia-1.4b", gpt_neox(24, 2048, 16), "1.4B"),
    Preset("pythia-2.8b", gpt_neox(32, 2560, 32), "2.8B"),
    Preset("pythia-6.9b", gpt_neox(32, 4096, 32, 50_432), "6.9B", alias="pythia"),
    Preset("pythia-12b", gpt_neox(36, 5120, 40, 50_688), "12B"),
    family="gpt_neox",
    sizes="Biderman et al. 2023, arXiv:2304.01373, table 1 (from memory; rows of the vocabulary as released)",
    tokenizer=BPE,
    training=TRAINING,
)
