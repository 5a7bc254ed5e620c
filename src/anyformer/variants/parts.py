"""The parts of a specification by what they are in it: attentions, feed-forwards, the norms of the stream."""

from __future__ import annotations

from collections.abc import Iterator

from anyformer.layers import AttentionSpec, MoESpec
from anyformer.layers.feed_forward import ExpertSpec
from anyformer.layers.norm import NormSpec
from anyformer.spec import BlockSpec, MixerSpec, Spec, StackSpec


def mixers(block: BlockSpec) -> Iterator[MixerSpec]:
    """The mixers of a layer in order."""
    for sublayer in block.sublayers:
        for branch in sublayer.branches:
            yield branch.mixer


def attentions(block: BlockSpec, *, reads: str | None = "self") -> list[AttentionSpec]:
    """The attentions of a layer; those that read something else too with `reads=None`."""
    return [m for m in mixers(block) if isinstance(m, AttentionSpec) and reads in (None, m.reads)]


def feeds(block: BlockSpec) -> list[MixerSpec]:
    """The feed-forwards and mixtures of experts of a layer."""
    return [m for m in mixers(block) if isinstance(m, ExpertSpec | MoESpec)]


def layers(stack: StackSpec) -> list[BlockSpec]:
    """The layers, one that is tiled once."""
    return list({id(block): block for block in stack.blocks}.values())


def every(spec: Spec) -> Iterator[Spec]:
    """A specification and every value inside it, a value that stands in several places once."""
    seen, waiting = set[int](), [spec]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            fields = (each if isinstance(each, tuple) else (each,) for each in value.values().values())
            waiting += [item for items in fields for item in reversed(items) if isinstance(item, Spec)][::-1]


def norms(stack: StackSpec) -> Iterator[NormSpec]:
    """The norms of the stream: of branches, of sums, the final one; not those inside attention or the embedding."""
    for block in layers(stack):
        for sublayer in block.sublayers:
            places = [sublayer.norm_in, sublayer.norm_sum]
            places += [place for branch in sublayer.branches for place in (branch.norm_in, branch.norm_out)]
            yield from (place for place in places if isinstance(place, NormSpec))
    if isinstance(stack.norm, NormSpec):
        yield stack.norm


def role(mixer: MixerSpec) -> str:
    """What a mixer is in its layer: attention, cross-attention, feed-forward, or its kind."""
    if isinstance(mixer, AttentionSpec):
        return {"self": "attention", "memory": "cross-attention"}.get(mixer.reads, "attention to the embedding")
    return "feed-forward" if isinstance(mixer, ExpertSpec | MoESpec) else mixer.kind
