"""BART: the Transformer of 2017 with learned positions, a norm on its embeddings and GELU: Lewis et al., arXiv:1910.13461."""

from __future__ import annotations

from anyformer.families.compose import block, encoder_decoder, post_norm, repeat
from anyformer.families.preset import Preset
from anyformer.layers import (
    GELU,
    ActivationSpec,
    AttentionSpec,
    Causal,
    Everything,
    FeedForwardSpec,
    GQASpec,
    LayerNormSpec,
    LearnedPositionsSpec,
    Mask,
)
from anyformer.spec import Count, InitSpec, Length, MapSpec, ModelSpec, ScaleSpec, SublayerSpec, TermSpec, Width

NORM = LayerNormSpec(eps=1e-5)


def attend(n_heads: int, mask: Mask, *, memory: bool = False) -> SublayerSpec:
    """Return norm(x + attention(x)), of the layer's own input or the encoder's output, with all biases."""
    heads = GQASpec(n_heads=Count(n_heads), bias_query=True, bias_key=True, bias_value=True, bias_output=True)
    return post_norm(NORM, AttentionSpec(projection=heads, mask=mask, reads="memory" if memory else "self"))


def feed(d_ff: int, activation: ActivationSpec) -> SublayerSpec:
    """Return norm(x + feed-forward(x)), with biases."""
    return post_norm(NORM, FeedForwardSpec(d_ff=Width(d_ff), activation=activation))


def post_norm_stacks(
    *,
    d_model: int,
    vocab_size: int,
    layers: tuple[int, int],
    n_heads: tuple[int, int],
    d_ff: tuple[int, int],
    positions: TermSpec,
    embedding_norm: MapSpec | None,
    activation: ActivationSpec,
    token_scale: ScaleSpec | None = None,
    head_bias: bool = False,
    init: InitSpec | None = None,
    context: int | None = None,
) -> ModelSpec:
    """Post-norm stacks on one tied table; of each pair of sizes the encoder's comes first."""
    encoder = block(attend(n_heads[0], Everything()), feed(d_ff[0], activation))
    decoder = block(
        attend(n_heads[1], Causal()), attend(n_heads[1], Everything(), memory=True), feed(d_ff[1], activation)
    )
    return encoder_decoder(
        vocab_size=vocab_size,
        d_model=d_model,
        encoder=repeat(encoder, layers[0]),
        decoder=repeat(decoder, layers[1]),
        positions=(positions,),
        token_scale=token_scale,
        embedding_norm=embedding_norm,
        head_bias=head_bias,
        init=init,
        context=context,
    )


def bart(
    *,
    d_model: int,
    layers: tuple[int, int],
    n_heads: tuple[int, int],
    d_ff: tuple[int, int],
    vocab_size: int = 50_265,
    n_positions: int = 1024,
    activation: ActivationSpec | None = None,
    token_scale: ScaleSpec | None = None,
    head_bias: bool = False,
) -> ModelSpec:
    """The model (section 2.1); its tables of positions begin with two rows that are never read."""
    return post_norm_stacks(
        d_model=d_model,
        vocab_size=vocab_size,
        layers=layers,
        n_heads=n_heads,
        d_ff=d_ff,
        positions=LearnedPositionsSpec(n_positions=Length(n_positions), offset=2),
        embedding_norm=NORM,
        activation=activation or GELU(),
        token_scale=token_scale,
        head_bias=head_bias,
        context=n_positions,
    )


SOURCE = "Lewis et al. 2019, arXiv:1910.13461, section 2.1; totals of the released checkpoints"
TOKENIZER = "GPT-2's byte-level BPE, 50,257, and special tokens: 50,265 rows"
PRESETS = tuple(
    Preset(
        f"bart-{size}",
        "bart",
        bart(d_model=d_model, layers=(n, n), n_heads=(heads, heads), d_ff=(4 * d_model, 4 * d_model)),
        SOURCE,
        published,
        None,
        TOKENIZER,
    )
    for size, published, n, d_model, heads in (("base", "139M", 6, 768, 12), ("large", "406M", 12, 1024, 16))
)
