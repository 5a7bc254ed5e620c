"""GPT, the first: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 4.1."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, post_norm, repeat, with_biases
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    ActivationSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
)
from anyformer.spec import Count, Length, ModelSpec, Width


def openai_gpt(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    vocab_size: int = 40_478,
    activation: ActivationSpec | None = None,
    eps: float = 1e-5,
    tied: bool = True,
    context: int = 512,
) -> ModelSpec:
    """The decoder of 2017 without its encoder: norms after each sum and none at the end, positions learned."""
    norm = LayerNormSpec(eps=eps)
    heads = with_biases(GQASpec(n_heads=Count(n_heads)), True, True)
    layer = block(
        post_norm(norm, AttentionSpec(projection=heads, mask=Causal())),
        post_norm(norm, FeedForwardSpec(d_ff=Width(4 * d_model), activation=activation or GELU(form="tanh"))),
    )
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=None,
        tied=tied,
        positions=(LearnedPositionsSpec(n_positions=Length(context)),),
        context=context,
    )


PRESETS = (
    Preset(
        "gpt",
        "openai-gpt",
        openai_gpt(n_layers=12, d_model=768, n_heads=12),
        "Radford et al. 2018, section 4.1; the total as in the literature after it",
        "117M",
        None,
        "BPE with 40,000 merges, 40,478",
    ),
)
