"""GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3 and table 2."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, pre_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    ByRole,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    Normal,
)
from anyformer.spec import Count, Length, ModelSpec, Width


def gpt2(*, n_layers: int, d_model: int, n_heads: int, vocab_size: int = 50_257, context: int = 1024) -> ModelSpec:
    """Pre-norm LayerNorm, learned positions, biases, tied; what writes to the stream starts at 0.02/√(2 n_layers)."""
    norm = LayerNormSpec(eps=1e-5)
    heads = GQASpec(n_heads=Count(n_heads), bias_query=True, bias_key=True, bias_value=True, bias_output=True)
    layer = block(
        pre_norm(norm, AttentionSpec(projection=heads, mask=Causal())),
        pre_norm(norm, FeedForwardSpec(d_ff=Width(4 * d_model), activation=GELU(form="tanh"))),
    )
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(layer, n_layers),
        norm=norm,
        tied=True,
        positions=(LearnedPositionsSpec(n_positions=Length(context)),),
        init=ByRole(output=Normal(depth_power=-0.5)),
        context=context,
    )


def _preset(name: str, n_layers: int, d_model: int, n_heads: int, published: str, printed: str) -> Preset:
    return Preset(
        name,
        "gpt2",
        gpt2(n_layers=n_layers, d_model=d_model, n_heads=n_heads),
        "Radford et al. 2019, table 2; totals as the authors' repository corrects them",
        published,
        f"the paper's table 2 prints {printed}, which its authors later called an error",
        "byte-level BPE, 50,257",
    )


PRESETS = (
    _preset("gpt2", 12, 768, 12, "124M", "117M"),
    _preset("gpt2-medium", 24, 1024, 16, "355M", "345M"),
    _preset("gpt2-large", 36, 1280, 20, "774M", "762M"),
    _preset("gpt2-xl", 48, 1600, 25, "1558M", "1542M"),
)
