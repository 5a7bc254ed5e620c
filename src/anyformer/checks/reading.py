"""What checks read of a specification: its stacks, each kind of layer once, and the attentions in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from anyformer.descriptions.grouping import distinct_layers, places
from anyformer.errors import InputError
from anyformer.layers import AttentionSpec
from anyformer.layers.mask import Mask, visible
from anyformer.layers.tokens import plain_tokens
from anyformer.spec import ModelSpec, Place, Spec, StackSpec

PROBE = 17  # tokens on which a mask is asked what it shows: odd, so that patterns of blocks and strides don't fit


class Attention(NamedTuple):
    """One attention of one kind of layer."""

    stack: str  # "", or encoder and decoder where there are both
    at: tuple[int, ...]  # layers, counted from 0
    spec: AttentionSpec
    place: Place


def reduced(spec: ModelSpec) -> ModelSpec:
    """The same model with one layer of each kind."""

    def few(stack: StackSpec) -> StackSpec:
        return stack.but(blocks=tuple(layers.block for layers in distinct_layers(stack)))

    stack = few(spec.stack)
    heads = tuple(head.within(len(stack.blocks)) for head in spec.heads)
    return spec.but(stack=stack, encoder=spec.encoder and few(spec.encoder), heads=heads)


def parts(spec: ModelSpec) -> Iterator[Spec]:
    """Every value in a model, those of equal layers once."""
    yield from reduced(spec).nested()


def own_parts(spec: ModelSpec) -> tuple[str, ...]:
    """The kinds of the parts that a user has defined."""
    return tuple(dict.fromkeys(v.kind for v in parts(spec) if not type(v).__module__.startswith("anyformer.")))


def attentions(spec: ModelSpec) -> Iterator[Attention]:
    """Every attention of every kind of layer."""
    d_source = spec.encoder.d_model if spec.encoder else 0
    for name, stack in spec.stacks.items():
        place = Place(stack.d_model, (stack.d_model,), d_source or stack.d_model)
        for layers in distinct_layers(stack):
            for value in layers.block.nested():
                if isinstance(value, AttentionSpec):
                    yield Attention(name, layers.at, value, place)


def where(found: Iterable[Attention], spec: ModelSpec) -> str:
    """In which layers attentions stand: "all layers", "decoder layers 0–2"."""
    said = []
    for name, stack in spec.stacks.items():
        at = sorted({i for attention in found if attention.stack == name for i in attention.at})
        if at:
            which = "all layers" if len(at) == len(stack.blocks) else places(at)
            said.append(f"{which} of the {name}" if name else which)
    return " and ".join(said)


def heads_told_apart(attention: Attention) -> int:
    """For how many heads a mask is another: 1 where it is the same for all."""
    try:
        n_heads = attention.spec.projection.sizes(attention.place)[0]
    except TypeError:  # a user's own projection need not say
        return 1
    tokens = plain_tokens(PROBE, torch.device("cpu"))
    try:
        seen = visible(attention.spec.mask, tokens, tokens, n_heads)
    except InputError:
        return 1
    return 1 if seen is None else seen.shape[1]


def sees_ahead(mask: Mask, n_heads: int) -> bool | None:
    """Whether a mask shows some token what comes after it; None where that depends on what is said of tokens."""
    tokens = plain_tokens(PROBE, torch.device("cpu"))
    try:
        seen = visible(mask, tokens, tokens, n_heads)
    except InputError:
        return None
    return seen is None or bool(seen.expand(1, seen.shape[1], PROBE, PROBE).triu(1).any())
