"""The parts of a specification by what they are in it, to read and to change: attentions, feed-forwards, the stream's norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from anyformer.layers import AttentionSpec, MoESpec
from anyformer.layers.feed_forward import ExpertSpec
from anyformer.layers.norm import NormSpec
from anyformer.spec import BlockSpec, BranchSpec, HeadSpec, MapSpec, MixerSpec, ModelSpec, StackSpec, TableSpec

GATED = {"SiLU": "SwiGLU", "GELU": "GeGLU", "ReLU": "ReGLU", "Sigmoid": "GLU", "Identity": "bilinear"}
"""What a gated feed-forward is called, by its activation. Shazeer 2020, arXiv:2002.05202."""


def _with_branches(block: BlockSpec, change: Callable[[BranchSpec], BranchSpec]) -> BlockSpec:
    return block.but(sublayers=tuple(s.but(branches=tuple(map(change, s.branches))) for s in block.sublayers))


def with_mixers(block: BlockSpec, change: Callable[[MixerSpec], MixerSpec]) -> BlockSpec:
    """The layer with every mixer changed, in order."""
    return _with_branches(block, lambda branch: branch.but(mixer=change(branch.mixer)))


def with_maps(block: BlockSpec, change: Callable[[MapSpec | None], Any]) -> BlockSpec:
    """The layer with what stands before and after its branches and after their sum changed, places without any among them."""
    block = _with_branches(block, lambda b: b.but(norm_in=change(b.norm_in), norm_out=change(b.norm_out)))
    around = (
        s.but(norm_in=change(s.norm_in), norm_out=change(s.norm_out), norm_sum=change(s.norm_sum))
        for s in block.sublayers
    )
    return block.but(sublayers=tuple(around))


def attentions(block: BlockSpec, *, reads: str | None = "self") -> list[AttentionSpec]:
    """The attentions of a layer to its own stack, by keys of its own or of another layer; all of them with `reads=None`."""
    found = [m for m in block.mixers if isinstance(m, AttentionSpec)]
    return [m for m in found if reads in (None, "self" if m.reads == "layer" else m.reads)]


def feeds(block: BlockSpec) -> list[MixerSpec]:
    """The feed-forwards and mixtures of experts of a layer."""
    return [m for m in block.mixers if isinstance(m, ExpertSpec | MoESpec)]


def mixing(block: BlockSpec) -> list[MixerSpec]:
    """What mixes the tokens of a layer's own text: attention to it, or a state."""
    return [m for m in block.mixers if m.job == "mixing" and not (isinstance(m, AttentionSpec) and m.reads == "input")]


def layers(stack: StackSpec) -> list[BlockSpec]:
    """The layers, one that is tiled once."""
    return list({id(block): block for block in stack.blocks}.values())


def norms(part: StackSpec | BlockSpec) -> Iterator[NormSpec]:
    """The norms of the stream: of branches, of sums, a stack's final one; not those inside attention or the embedding."""
    if isinstance(part, StackSpec):
        yield from (norm for block in layers(part) for norm in norms(block))
        found = [part.norm]
    else:
        found = []
        for sublayer in part.sublayers:
            found += [sublayer.norm_in, sublayer.norm_out, sublayer.norm_sum]
            found += [norm for branch in sublayer.branches for norm in (branch.norm_in, branch.norm_out)]
    yield from (norm for norm in found if isinstance(norm, NormSpec))


def role(mixer: MixerSpec) -> str:
    """What a mixer is in its layer: attention, cross-attention, feed-forward, or its kind."""
    if isinstance(mixer, AttentionSpec):
        named = {"memory": "cross-attention", "input": "attention to the embedding"}
        return named.get(mixer.reads, "attention")
    return "feed-forward" if isinstance(mixer, ExpertSpec | MoESpec) else mixer.kind


def is_tied(head: HeadSpec, spec: ModelSpec) -> bool:
    """Whether a head's table is the embedding's."""
    tables = {value.shared for value in spec.stack.embedding.nested(TableSpec)}
    return head.tied is not None and head.tied in tables
