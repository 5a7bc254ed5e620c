"""What works and is unusual, or easily overlooked: sizes that hardware likes, contexts, positions, norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyformer.descriptions.facts import every_attention, norm_places, parts, position_terms, where
from anyformer.layers import AttentionSpec, FeedForwardSpec, RotarySpec, ScoreSpec, SlidingWindow
from anyformer.layers.causality import sees_later_tokens
from anyformer.spec import ModelSpec, StackSpec

MULTIPLE = 64  # of rows, so that matrix products of 16-bit numbers fill their tiles
EIGHT = 8  # of head_dim, for fused attention kernels on GPUs


def notes(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    if spec.vocab_size % MULTIPLE:
        more = -(-spec.vocab_size // MULTIPLE) * MULTIPLE
        text = f"{spec.vocab_size:,} is no multiple of {MULTIPLE}; {more:,} rows make the head's product faster on GPUs"
        yield "vocabulary", text
    yield from _windows(spec)
    yield from _widths(spec)
    yield from _rotary(spec)
    yield from _biases(spec)
    for name, stack in spec.stacks.items():
        of = f"the {name}" if name else "the model"
        yield from (("positions", f"{of} {said}") for said in _schemes(stack))
        yield from (("norms", f"{of} is {said}") for said in _norms(stack))
        yield from (("masks", f"{of} {said}") for said in _sides(stack))


def _windows(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    wide: dict[int, list[Any]] = {}
    for attention in every_attention(spec):
        for mask in attention.spec.mask.nested(SlidingWindow):
            if spec.context and mask.size >= spec.context:
                wide.setdefault(mask.size, []).append(attention)
    for size, found in wide.items():
        text = f"the window of {size:,} in {where(found, spec)} hides nothing within the context of {spec.context:,} tokens"
        yield "window", text


def _widths(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    odd: dict[int, list[Any]] = {}
    for attention in every_attention(spec):
        for width in (attention.sizes or ())[1:]:
            if width % EIGHT and attention not in odd.setdefault(width, []):
                odd[width].append(attention)
    for width, found in odd.items():
        text = f"heads of {width} in {where(found, spec)} are no multiple of {EIGHT}, as fused kernels on GPUs ask"
        yield "head_dim", text


def _rotary(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for rotary in dict.fromkeys(value for value in parts(spec) if isinstance(value, RotarySpec)):
        original = getattr(rotary.scaling, "original_context", None)
        factor = getattr(rotary.scaling, "factor", None)
        if spec.context and original and factor and spec.context > (reach := round(original * factor)):
            scaling = type(rotary.scaling).kind  # type: ignore[union-attr]
            text = f"{scaling} stretches {original:,} tokens to {reach:,}, and the context is {spec.context:,}"
            yield "positions", text


def _biases(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    """Biases of the feed-forwards alone: those that one gets who says nothing of them."""
    biased = any(value.bias_in or value.bias_out for value in parts(spec) if isinstance(value, FeedForwardSpec))
    maps = [attention.spec.projection.values() for attention in every_attention(spec)]
    others = [value for fields in maps for name, value in fields.items() if name.startswith("bias_")]
    if biased and others and not any(others):
        yield (
            "biases",
            "the feed-forwards have biases, attention has none; a FeedForward has them unless bias_in and bias_out are false",
        )


def _schemes(stack: StackSpec) -> Iterator[str]:
    terms = [term.kind for term in position_terms(stack)]
    found = sorted({value.kind for block in set(stack.blocks) for value in block.nested(RotarySpec, ScoreSpec)})
    if terms and found:
        yield f"has two position schemes: {', '.join(terms)} in the embedding, {', '.join(found)} in attention"
    if not terms and not found:
        yield "has no position scheme: only masks and mixers of its own can tell the order of tokens"


def _norms(stack: StackSpec) -> Iterator[str]:
    found = {place for block in set(stack.blocks) for sublayer in block.sublayers for place in norm_places(sublayer)}
    before, after = "in" in found, "sum" in found
    if before and not after and stack.norm is None:
        yield "pre-norm without a final norm, so that what the head reads grows with depth"
    if after and not before:
        yield "post-norm: train it with a warm-up (Xiong et al. 2020, arXiv:2002.04745)"


def _sides(stack: StackSpec) -> Iterator[str]:
    mixers = {mixer for block in set(stack.blocks) for mixer in block.mixers}
    states = sorted({mixer.kind for mixer in mixers if mixer.kept_as() == "state" and not mixer.shows_later()})
    own = (mixer.mask for mixer in mixers if isinstance(mixer, AttentionSpec) and mixer.reads != "memory")
    if states and any(map(sees_later_tokens, own)):
        yield f"looks both ways in attention, while {', '.join(states)} reads what comes before alone"
