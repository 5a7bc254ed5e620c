"""OPT: Zhang et al. 2022, arXiv:2205.01068; the 350M differs from all others in where its norms and projections are."""

from __future__ import annotations

from anyformer.families.compose import block, language_model, post_norm, pre_norm, repeat, with_biases
from anyformer.families.preset import Preset
from anyformer.layers import (
    ActivationSpec,
    AttentionSpec,
    Causal,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    ReLU,
)
from anyformer.spec import Count, Length, ModelSpec, Width


def opt(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    vocab_size: int = 50_272,
    d_ff: int | None = None,
    table_width: int | None = None,
    norm: LayerNormSpec | None = None,
    norm_first: bool = True,
    final_norm: bool = True,
    bias: bool = True,
    activation: ActivationSpec | None = None,
    tied: bool = True,
    context: int = 2048,
) -> ModelSpec:
    """GPT-3's shape with ReLU; positions are learned, the first two rows of their table never read."""
    norm = norm or LayerNormSpec()
    attention = AttentionSpec(projection=with_biases(GQASpec(n_heads=Count(n_heads)), bias, bias), mask=Causal())
    feed = FeedForwardSpec(
        d_ff=Width(d_ff or 4 * d_model), activation=activation or ReLU(), bias_in=bias, bias_out=bias
    )
    sublayer = pre_norm if norm_first else post_norm
    return language_model(
        vocab_size=vocab_size,
        d_model=d_model,
        blocks=repeat(block(sublayer(norm, attention), sublayer(norm, feed)), n_layers),
        norm=norm if norm_first and final_norm else None,
        tied=tied,
        positions=(LearnedPositionsSpec(n_positions=Length(context), offset=2),),
        table_width=table_width,
        # The paper starts matrices at 0.006 and outputs at 0.006 / √(2 n_layers); the released files say 0.02.
        context=context,
    )


def _preset(name: str, spec: ModelSpec, published: str, erratum: str | None = None) -> Preset:
    source = "Zhang et al. 2022, arXiv:2205.01068, table 1; released config.json (from memory)"
    return Preset(f"opt-{name}", "opt", spec, source, published, erratum, "byte-level BPE of GPT-2, 50,272")


ODD = "post-norm, no final norm, tokens of width 512: so are the released weights, the paper does not say so"

PRESETS = (
    _preset("125m", opt(n_layers=12, d_model=768, n_heads=12), "125M"),
    _preset(
        "350m",
        opt(n_layers=24, d_model=1024, n_heads=16, table_width=512, norm_first=False),
        "350M",
        f"331M; {ODD}",
    ),
    _preset("1.3b", opt(n_layers=24, d_model=2048, n_heads=32), "1.3B"),
    _preset("2.7b", opt(n_layers=32, d_model=2560, n_heads=32), "2.7B"),
    _preset("6.7b", opt(n_layers=32, d_model=4096, n_heads=32), "6.7B"),
    _preset("13b", opt(n_layers=40, d_model=5120, n_heads=40), "13B"),
    _preset("30b", opt(n_layers=48, d_model=7168, n_heads=56), "30B"),
    _preset("66b", opt(n_layers=64, d_model=9216, n_heads=72), "66B"),
    _preset("175b", opt(n_layers=96, d_model=12_288, n_heads=96), "175B"),
)
