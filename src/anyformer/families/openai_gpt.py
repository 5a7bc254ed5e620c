"""GPT, the first: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 4.1."""

from __future__ import annotations

from anyformer.families.compose import attend, feed, language_model, post_norm, repeat, serial
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import GELU, LayerNormSpec, LearnedPositionsSpec
from anyformer.spec import Length, ModelSpec


def openai_gpt(n_layers: int, d_model: int, n_heads: int) -> ModelSpec:
    """The decoder of 2017 without its encoder: norms after each sum and none at the end, positions learned."""
    attention, after = attend(n_heads, bias=True), feed(4 * d_model, GELU(form="tanh"))
    layer = serial(LayerNormSpec(eps=1e-5), attention, after, placed=post_norm)
    positions = LearnedPositionsSpec(n_positions=Length(512))
    return language_model(
        40_478, d_model, repeat(layer, n_layers), None, tied=True, positions=(positions,), context=512
    )


GPT = Origin("gpt", "transformer-lm", 2018, "Radford et al. 2018, section 4.1").lineage(
    "learned positions, GELU, a larger stack",
    Preset("gpt", openai_gpt(12, 768, 12), "117M"),
    family="openai-gpt",
    sizes="Radford et al. 2018, section 4.1; the total as in the literature after it",
    tokenizer="BPE with 40,000 merges, 40,478",
    training={
        "source": "Radford et al. 2018, section 4.1",
        "optimiser": "Adam, decay 0.01 of all but biases and gains, dropout 0.1",
        "schedule": "linear over 2,000 steps to 2.5e-4, then a cosine to 0",
        "batch": "64 sequences of 512 tokens, 100 passes over BooksCorpus",
    },
)
