"""Sparse Transformer: Child et al. 2019, arXiv:1904.10509, sections 4.2, 5 and 7."""

from __future__ import annotations

import math

from anyformer.families.compose import attend, changed, feed, language_model, repeat, serial, window
from anyformer.families.lineage import Origin, Preset
from anyformer.layers import (
    GELU,
    BlockEnds,
    ByRole,
    Causal,
    FactorisedPositionsSpec,
    FeedForwardSpec,
    GQASpec,
    Heads,
    LayerNormSpec,
    Mask,
    Normal,
    SameBlock,
    Strided,
)
from anyformer.spec import Count, ModelSpec, Width, Window


def strided(stride: int) -> Mask:
    """Every other head seeing the last tokens, from i - stride to i, the others each stride-th (section 4.2)."""
    return Heads(masks=(window(stride + 1), Causal() & Strided(stride=Window(stride))))


def fixed(stride: int, last: int) -> Mask:
    """Every head seeing its own block and the last tokens of each one before: both patterns merged (section 5.2)."""
    return Causal() & (SameBlock(size=Window(stride)) | BlockEnds(size=Window(stride), last=Count(last)))


def sparse_transformer(n_layers: int, d_model: int, n_heads: int, mask: Mask, positions: tuple[int, ...]) -> ModelSpec:
    """GPT-2 with factorised attention and positions, and x·σ(1.702 x); bytes in, bytes out (section 5)."""
    norm = LayerNormSpec()
    layer = serial(norm, attend(n_heads, bias=True, mask=mask), feed(4 * d_model, GELU(form="quick")))
    start = Normal(scale=0.125, fan_in_power=-0.5)
    return language_model(
        256,
        d_model,
        repeat(layer, n_layers),
        norm,
        tied=False,
        positions=(FactorisedPositionsSpec(shape=positions),),
        init=ByRole(table=start, matrix=start, output=start.but(depth_power=-0.5)),
        context=math.prod(positions),
    )


_TEXT = sparse_transformer(30, 512, 8, fixed(128, 32), (96, 128))
_PICTURES = sparse_transformer(48, 512, 16, strided(128), (64, 64, 3))
# "half-size feedforward and query-key projections"
_SMALL_PICTURES = changed(
    changed(sparse_transformer(128, 256, 2, strided(128), (32, 32, 3)), FeedForwardSpec, d_ff=Width(512)),
    GQASpec,
    head_dim=Width(64),
    value_dim=Width(128),
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
