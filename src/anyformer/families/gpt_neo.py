"""GPT-Neo: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with Mesh-Tensorflow"."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families.compose import block, feed, language_model, pre_norm
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    ActivationSpec,
    AttentionSpec,
    Causal,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    Mask,
    SlidingWindow,
)
from anyformer.spec import BlockSpec, Count, Length, ModelSpec, ScaleSpec, Window


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
    heads = GQASpec(n_heads=Count(n_heads), bias_output=True)
    after = pre_norm(norm, feed(d_ff or 4 * d_model, activation or GELU(form="tanh")))

    def layer(window: int | None) -> BlockSpec:
        mask: Mask = Causal() if window is None else Causal() & SlidingWindow(size=Window(window))
        return block(pre_norm(norm, AttentionSpec(projection=heads, mask=mask, scale=ScaleSpec())), after)

    kinds = {window: layer(window) for window in windows}
    return language_model(
        vocab_size,
        d_model,
        tuple(kinds[window] for window in windows),
        norm,
        tied=tied,
        positions=(LearnedPositionsSpec(n_positions=Length(context)),),
        context=context,
    )


GPT_NEO = Origin("gpt-neo", "gpt3", 2021, "the repository gpt-neo, from memory").lineage(
    "scores not scaled, no biases of queries, keys and values",
    Preset("gpt-neo-125m", gpt_neo(windows=(None, 256) * 6, d_model=768, n_heads=12), "125M"),
    Preset("gpt-neo-1.3b", gpt_neo(windows=(None, 256) * 12, d_model=2048, n_heads=16), "1.3B"),
    Preset("gpt-neo-2.7b", gpt_neo(windows=(None, 256) * 16, d_model=2560, n_heads=20), "2.7B", alias="gpt-neo"),
    family="gpt_neo",
    sizes="Black et al. 2021, the repository gpt-neo and the released config.json (from memory)",
    tokenizer="byte-level BPE of GPT-2, 50,257",
)
