"""The few phrases in which presets are written: a sublayer's norms, a pattern of layers, a language model around them."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.layers import AddSpec, ByRole, TokensSpec
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    EmbeddingSpec,
    HeadSpec,
    InitSpec,
    Length,
    MapSpec,
    MixerSpec,
    ModelSpec,
    ScaleSpec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    TermSpec,
    Vocab,
    Width,
)


def pre_norm(norm: MapSpec, *mixers: MixerSpec) -> SublayerSpec:
    """Return x + Σ mixer(norm(x)): one mixer is serial, several are parallel on one norm."""
    return SublayerSpec(branches=tuple(BranchSpec(mixer=mixer) for mixer in mixers), norm_in=norm)


def post_norm(norm: MapSpec, *mixers: MixerSpec) -> SublayerSpec:
    """Return norm(x + Σ mixer(x))."""
    return SublayerSpec(branches=tuple(BranchSpec(mixer=mixer) for mixer in mixers), norm_sum=norm)


def block(*sublayers: SublayerSpec) -> BlockSpec:
    """Return one layer."""
    return BlockSpec(sublayers=sublayers)


def repeat(pattern: Sequence[BlockSpec] | BlockSpec, n_layers: int) -> tuple[BlockSpec, ...]:
    """Return the pattern over and over, cut to n_layers."""
    layers = [pattern] if isinstance(pattern, BlockSpec) else list(pattern)
    return tuple(layers[i % len(layers)] for i in range(n_layers))


def embedding(
    table: TableSpec, *positions: TermSpec, scale: ScaleSpec | None = None, norm: MapSpec | None = None
) -> EmbeddingSpec:
    """Return the sum of the tokens' vectors and the position terms."""
    return EmbeddingSpec(terms=(TokensSpec(table=table, scale=scale), *positions), norm=norm)


def language_model(
    *,
    vocab_size: int,
    d_model: int,
    blocks: tuple[BlockSpec, ...],
    norm: MapSpec | None,
    tied: bool,
    positions: Sequence[TermSpec] = (),
    token_scale: ScaleSpec | None = None,
    init: InitSpec | None = None,
    context: int | None = None,
) -> ModelSpec:
    """Return a decoder with one head over its vocabulary; `tied` shares the head's table with the embedding."""
    table = TableSpec(rows=Vocab(vocab_size), shared="tokens" if tied else None)
    stack = StackSpec(
        d_model=Width(d_model),
        embedding=embedding(table, *positions, scale=token_scale),
        blocks=blocks,
        residual=AddSpec(),
        norm=norm,
    )
    length = None if context is None else Length(context)
    return ModelSpec(stack=stack, heads=(HeadSpec(table=table),), init=init or ByRole(), context=length)
