"""The few phrases in which presets are written: a sublayer's norms, a pattern of layers, a language model around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from anyformer.layers import (
    ActivationSpec,
    AddSpec,
    AttentionSpec,
    ByRole,
    Causal,
    Everything,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    LinearSpec,
    Mask,
    RotarySpec,
    ScoreSpec,
    SlidingWindow,
    SymmetricWindow,
    TokensSpec,
)
from anyformer.spec import (
    BlockSpec,
    BranchSpec,
    Count,
    EmbeddingSpec,
    HeadSpec,
    InitSpec,
    Length,
    MapSpec,
    MixerSpec,
    ModelSpec,
    ScaleSpec,
    Spec,
    StackSpec,
    SublayerSpec,
    TableSpec,
    TermSpec,
    Vocab,
    Width,
    Window,
    nesting,
)

S = TypeVar("S", bound=Spec)
P = TypeVar("P", bound=Spec)
K = TypeVar("K")


def edited(value: Spec, part: type[P], edit: Callable[[P], Any]) -> Any:
    """A model, or a part of one, with what `edit` makes of every `part` in it; what stands there several times is edited once."""
    there = {kind for kind in value.kinds_inside if issubclass(kind, part)}
    known: dict[int, Any] = {}

    def made(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(made, value))
        if not isinstance(value, Spec) or value.kinds_inside.isdisjoint(there):
            return value
        if id(value) not in known:
            whole = value.but(**{name: made(getattr(value, name)) for name in nesting(type(value))})
            known[id(value)] = edit(whole) if isinstance(whole, part) else whole
        return known[id(value)]

    return made(value)


def changed(value: S, part: type[Spec], **fields: Any) -> S:
    """A model, or a part of one, with these fields of every `part` in it changed: how a descendant differs."""
    return edited(value, part, lambda found: found.but(**fields))


def with_layers(model: ModelSpec, layers: Iterable[BlockSpec]) -> ModelSpec:
    """The model with these layers for its own."""
    return model.but(stack=model.stack.but(blocks=tuple(layers)))


def layered(model: ModelSpec, *pattern: BlockSpec | ModelSpec) -> ModelSpec:
    """The model with this pattern of layers over and over, as deep as it is; of a model its first layer is meant."""
    layers = [each.stack.blocks[0] if isinstance(each, ModelSpec) else each for each in pattern]
    return with_layers(model, repeat(layers, model.n_layers))


def with_layers_of(model: ModelSpec, other: ModelSpec, at: Collection[int]) -> ModelSpec:
    """The model with the layers of another, which is as deep, at these places."""
    layers = zip(model.stack.blocks, other.stack.blocks, strict=True)
    return with_layers(model, (theirs if i in at else own for i, (own, theirs) in enumerate(layers)))


def firsts(kinds: Sequence[K], model: ModelSpec) -> dict[K, BlockSpec]:
    """The first layer of each kind in a model, given the kinds of its layers."""
    return dict(reversed([*zip(kinds, model.stack.blocks, strict=True)]))


def normed(model: ModelSpec, norm: MapSpec) -> ModelSpec:
    """The model with this norm before each sublayer and at its end."""
    return changed(changed(model, SublayerSpec, norm_in=norm), StackSpec, norm=norm)


def mixing(layer: BlockSpec, mixer: MixerSpec) -> BlockSpec:
    """The layer with this mixer in the place of its attention."""
    first, *rest = layer.sublayers
    return layer.but(sublayers=(first.but(branches=(first.branches[0].but(mixer=mixer),)), *rest))


def every(n: int, model: ModelSpec, mixer: MixerSpec) -> ModelSpec:
    """The model with this mixer in place of attention but in each `n`-th layer."""
    return layered(model, *[mixing(model.stack.blocks[0], mixer)] * (n - 1), model)


def elsewhere(model: ModelSpec, attending: Collection[int], mixer: MixerSpec) -> ModelSpec:
    """The model with this mixer in place of attention but in the layers that attend; alike layers stay one."""
    mixed = edited(model.stack, BlockSpec, lambda layer: mixing(layer, mixer))
    return with_layers_of(model.but(stack=mixed), model, attending)


def pre_norm(norm: MapSpec, *mixers: MixerSpec) -> SublayerSpec:
    """X + Σ mixer(norm(x)): one mixer is serial, several are parallel on one norm."""
    return SublayerSpec(branches=tuple(BranchSpec(mixer=mixer) for mixer in mixers), norm_in=norm)


def post_norm(norm: MapSpec, *mixers: MixerSpec) -> SublayerSpec:
    """norm(x + Σ mixer(x))."""
    return SublayerSpec(branches=tuple(BranchSpec(mixer=mixer) for mixer in mixers), norm_sum=norm)


def parallel(norm: MapSpec, *mixers: MixerSpec) -> SublayerSpec:
    """X + Σ mixer(its own norm(x)): branches side by side, a norm each."""
    return SublayerSpec(branches=tuple(BranchSpec(mixer=mixer, norm_in=norm) for mixer in mixers))


def block(*sublayers: SublayerSpec) -> BlockSpec:
    """One layer."""
    return BlockSpec(sublayers=sublayers)


def serial(norm: MapSpec, *mixers: MixerSpec, placed: Callable[..., SublayerSpec] = pre_norm) -> BlockSpec:
    """One layer of these in turn, each with a norm, which stands before it if it is not `placed` otherwise."""
    return block(*(placed(norm, mixer) for mixer in mixers))


def repeat(pattern: Sequence[BlockSpec] | BlockSpec, n_layers: int) -> tuple[BlockSpec, ...]:
    """The pattern over and over, cut to n_layers."""
    layers = [pattern] if isinstance(pattern, BlockSpec) else list(pattern)
    return tuple(layers[i % len(layers)] for i in range(n_layers))


def embedding(
    table: TableSpec, *positions: TermSpec, scale: ScaleSpec | None = None, norm: MapSpec | None = None
) -> EmbeddingSpec:
    """The sum of the tokens' vectors, projected where the table has a width of its own, and the position terms."""
    projection = None if table.width is None else LinearSpec()
    return EmbeddingSpec(terms=(TokensSpec(table=table, scale=scale, projection=projection), *positions), norm=norm)


def language_model(
    vocab_size: int,
    d_model: int,
    blocks: tuple[BlockSpec, ...],
    norm: MapSpec | None,
    *,
    tied: bool,
    encoder: tuple[BlockSpec, ...] | None = None,
    positions: Sequence[TermSpec] = (),
    token_scale: ScaleSpec | None = None,
    embedding_norm: MapSpec | None = None,
    table_width: int | None = None,
    head_bias: bool = False,
    logit_scale: ScaleSpec | None = None,
    init: InitSpec | None = None,
    context: int | None = None,
) -> ModelSpec:
    """A stack with one head over its vocabulary; `tied` shares the head's table with the embedding.

    An encoder of these blocks has the decoder's table of tokens, and norms and positions like its. A `table_width` of its own
    is projected, without biases, to d_model and, in the head, back (OPT-350M).
    """
    width = None if table_width in (None, d_model) else Width(table_width)
    table = TableSpec(rows=Vocab(vocab_size), width=width, shared="tokens" if tied or encoder else None)

    def stack(blocks: tuple[BlockSpec, ...]) -> StackSpec:
        terms = embedding(table, *positions, scale=token_scale, norm=embedding_norm)
        return StackSpec(d_model=Width(d_model), embedding=terms, blocks=blocks, residual=AddSpec(), norm=norm)

    head = HeadSpec(
        transform=() if width is None else (LinearSpec(d_out=width),),
        table=table if tied else table.but(shared=None),
        bias=head_bias,
        scale=logit_scale,
    )
    return ModelSpec(
        stack=stack(blocks),
        heads=(head,),
        encoder=None if encoder is None else stack(encoder),
        init=init or ByRole(),
        context=None if context is None else Length(context),
    )


def attend(
    n_heads: int,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    *,
    bias: bool = False,
    rotary: RotarySpec | None = None,
    mask: Mask | None = None,
    scores: tuple[ScoreSpec, ...] = (),
    scale: ScaleSpec | None = None,
) -> AttentionSpec:
    """Attention to the past, or by another mask, with biases of all four projections or without."""
    heads = GQASpec(
        n_heads=Count(n_heads),
        n_kv_heads=None if n_kv_heads is None else Count(n_kv_heads),
        head_dim=None if head_dim is None else Width(head_dim),
        bias_query=bias,
        bias_key=bias,
        bias_value=bias,
        bias_output=bias,
        rotary=rotary,
    )
    return AttentionSpec(projection=heads, mask=mask or Causal(), scores=scores, scale=scale or ScaleSpec(power=-0.5))


def window(size: int) -> Mask:
    """The last `size` keys."""
    return Causal() & SlidingWindow(size=Window(size))


def windowed(model: ModelSpec, size: int) -> ModelSpec:
    """The model with every layer seeing the last `size` keys (Mistral 7B, arXiv:2310.06825, section 2)."""
    return changed(model, AttentionSpec, mask=window(size))


def turning_windows(model: ModelSpec, size: int, every: int = 4) -> ModelSpec:
    """The model with windows but in each `every`-th layer, which sees everything and rotates nothing (Command A, EXAONE 4)."""
    full = changed(model, GQASpec, rotary=None)
    return layered(model, *[windowed(model, size)] * (every - 1), full)


def bidirectional(stack: StackSpec) -> StackSpec:
    """The stack with tokens that see ahead too, `size` keys to each side of a window's own; other patterns stay as they are."""

    def both_ways(attention: AttentionSpec) -> AttentionSpec:
        before, after = attention.mask.band() or (0, math.inf)
        if attention.reads == "memory" or after > 0:
            return attention
        whole = math.isinf(before)
        return attention.but(mask=Everything() if whole else SymmetricWindow(radius=Window(int(before) + 1)))

    return edited(stack, AttentionSpec, both_ways)


def causal(stack: StackSpec) -> StackSpec:
    """The stack with tokens that see back alone: of which `bidirectional` makes this one."""

    def back(attention: AttentionSpec) -> AttentionSpec:
        before, after = attention.mask.band() or (0, 1)
        if attention.reads == "memory" or before != after:
            return attention
        return attention.but(mask=Causal() if math.isinf(before) else window(int(before)))

    return edited(stack, AttentionSpec, back)


def untied(value: S) -> S:
    """A model or a stack with tables of its own."""
    return changed(value, TableSpec, shared=None)


def feed(d_ff: int, activation: ActivationSpec, *, bias: bool = True) -> FeedForwardSpec:
    """The feed-forward of one matrix up and one down, with biases of both or without."""
    return FeedForwardSpec(d_ff=Width(d_ff), activation=activation, bias_in=bias, bias_out=bias)


def gated(d_ff: int, activation: ActivationSpec) -> GatedFeedForwardSpec:
    """The feed-forward with a gate, without biases: SwiGLU, GeGLU (arXiv:2002.05202)."""
    return GatedFeedForwardSpec(d_ff=Width(d_ff), activation=activation)
