"""Sparse Transformer: Child et al. 2019, arXiv:1904.10509, sections 4.2, 5 and 7."""

from __future__ import annotations

import math

from anyformer.families.compose import block, feed, language_model, pre_norm, repeat, with_biases
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    AttentionSpec,
    BlockEnds,
    ByRole,
    Causal,
    FactorisedPositionsSpec,
    GQASpec,
    Heads,
    LayerNormSpec,
    Mask,
    Normal,
    SameBlock,
    SlidingWindow,
    Strided,
)
from anyformer.spec import Count, ModelSpec, Width, Window


def strided(stride: int) -> Mask:
    """Every other head seeing the last tokens, from i - stride to i, the others each stride-th (section 4.2)."""
    near = Causal() & SlidingWindow(size=Window(stride + 1))
    return Heads(masks=(near, Causal() & Strided(stride=Window(stride))))


def fixed(stride: int, last: int) -> Mask:
    """Every head seeing its own block and the last tokens of each one before: both patterns merged (section 5.2)."""
    return Causal() & (SameBlock(size=Window(stride)) | BlockEnds(size=Window(stride), last=Count(last)))


def sparse_transformer(
    *,
    n_layers: int,
    d_model: int,
    n_heads: int,
    mask: Mask,
    positions: tuple[int, ...],
    d_ff: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    vocab_size: int = 256,
) -> ModelSpec:
    """GPT-2 with factorised attention and positions, and x·σ(1.702 x); bytes in, bytes out (section 5)."""
    norm = LayerNormSpec()
    heads = GQASpec(
        n_heads=Count(n_heads),
        head_dim=None if head_dim is None else Width(head_dim),
        value_dim=None if value_dim is None else Width(value_dim),
    )
    attention = AttentionSpec(projection=with_biases(heads, True, True), mask=mask)
    layer = block(pre_norm(norm, attention), pre_norm(norm, feed(d_ff or 4 * d_model, GELU(form="quick"))))
    start = Normal(scale=0.125, fan_in_power=-0.5)
    return language_model(
        vocab_size,
        d_model,
        repeat(layer, n_layers),
        norm,
        tied=False,
        positions=(FactorisedPositionsSpec(shape=positions),),
        init=ByRole(table=start, matrix=start, output=start.but(depth_power=-0.5)),
        context=math.prod(positions),
    )


_TEXT = sparse_transformer(n_layers=30, d_model=512, n_heads=8, mask=fixed(128, 32), positions=(96, 128))
_PICTURES = sparse_transformer(n_layers=48, d_model=512, n_heads=16, mask=strided(128), positions=(64, 64, 3))
_SMALL_PICTURES = sparse_transformer(
    n_layers=128,
    d_model=256,
    n_heads=2,
    mask=strided(128),
    positions=(32, 32, 3),
    d_ff=512,  # "half-size feedforward and query-key projections"
    head_dim=64,
    value_dim=128,
)

SPARSE_TRANSFORMER = Origin("sparse-transformer", "transformer-lm", 2019, "arXiv:1904.10509, section 5").lineage(
    "factorised attention and positions, norms before each branch",
    Preset("sparse-transformer-cifar10", _SMALL_PICTURES, "59M"),
    Preset("sparse-transformer-enwik8", _TEXT, "95M", alias="sparse-transformer"),
    Preset("sparse-transformer-imagenet64", _PICTURES, "152M"),
    known="sparse-transformer-enwik8",
    family="sparse_transformer",
    sizes="Child et al. 2019, arXiv:1904.10509, section 7",
    tokenizer="bytes, 256",
)
