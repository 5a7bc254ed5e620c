"""GPT-Neo: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow"."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import block, language_model, pre_norm
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
    Mask,
    SlidingWindow,
)
from anyformer.spec import Count, Length, ModelSpec, ScaleSpec, Width, Window


def gpt_neo(
    *,
    windows: Sequence[int | None],
    d_model: int,
    n_heads: int,
    vocab_size: int = 50_257,
    d_ff: int | None = None,
    activation: ActivationSpec | None = None,
    eps: float = 1e-5,
    tied: bool = True,
    context: int = 2048,
) -> ModelSpec:
    """GPT-2 without the scale of scores and the biases of queries, keys and values; a window, or None, a layer."""
    norm = LayerNormSpec(eps=eps)
    feed = FeedForwardSpec(d_ff=Width(d_ff or 4 * d_model), activation=activation or GELU(form="tanh"))
    heads = GQASpec(n_heads=Count(n_heads), bias_output=True)

    def attention(window: int | None) -> AttentionSpec:
        mask: Mask = Causal() if window is None else Causal() & SlidingWindow(size=Window(window))
        return AttentionSpec(projection=heads, mask=mask, scale=ScaleSpec())

    kinds = {window: block(pre_norm(norm, attention(window)), pre_norm(norm, feed)) for window in windows}
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=tuple(kinds[window] for window in windows),
        norm=norm,
        tied=tied,
        positions=(LearnedPositionsSpec(n_positions=Length(context)),),
        context=context,
    )


def _preset(name: str, n_layers: int, d_model: int, n_heads: int, published: str) -> Preset:
    return Preset(
        f"gpt-neo-{name}",
        "gpt_neo",
        gpt_neo(windows=[None, 256] * (n_layers // 2), d_model=d_model, n_heads=n_heads),
        "Black et al. 2021, the repository gpt-neo and the released config.json (from memory)",
        published,
        None,
        "byte-level BPE of GPT-2, 50,257",
    )


PRESETS = (
    _preset("125m", 12, 768, 12, "125M"),
    _preset("1.3b", 24, 2048, 16, "1.3B"),
    _preset("2.7b", 32, 2560, 20, "2.7B"),
)
