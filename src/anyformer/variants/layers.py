"""One thing of a layer changed to what another's layer has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from anyformer.errors import SpecError
from anyformer.families.compose import changed
from anyformer.layers import AttentionSpec, FeedForwardSpec, GatedFeedForwardSpec, GQASpec, MLASpec, MoESpec
from anyformer.layers.feed_forward import ExpertSpec
from anyformer.layers.norm import NormSpec
from anyformer.spec import BlockSpec, Count, MixerSpec, Width
from anyformer.variants.parts import attentions, feeds, mixing, norms, role, with_maps, with_mixers

LayerChange = Callable[[BlockSpec, BlockSpec], BlockSpec]
T = TypeVar("T")
PLAIN = (FeedForwardSpec, GatedFeedForwardSpec)
BIASES = ("bias_query", "bias_key", "bias_value", "bias_output", "bias_in", "bias_out")


class Impossible(SpecError):
    """One of the two has no place for the other's part, so that it cannot be changed by itself."""

    def __init__(self, what: str) -> None:
        super().__init__(f"there is no place for it: that needs {what}")


class Absent(Impossible):
    """A layer has no such part, and stays as it is unless no layer has."""


def only(values: Iterable[T]) -> T:
    """The one value that all are. Raises Impossible where there is none, or more than one."""
    found = list(dict.fromkeys(values))
    if len(found) != 1:
        raise Impossible("one kind of it")
    return found[0]


def _attentions(change: Callable[[AttentionSpec, AttentionSpec], AttentionSpec]) -> LayerChange:
    """What changes each attention after the other layer's that reads the same, or after its own to itself."""

    def layer(a: BlockSpec, b: BlockSpec) -> BlockSpec:
        theirs = {other.reads: other for other in attentions(b, reads=None)}
        own = theirs.get("self")
        if not attentions(a):
            raise Absent("attention in both")
        if own is None:
            raise Impossible("attention in both")
        return with_mixers(a, lambda m: change(m, theirs.get(m.reads, own)) if isinstance(m, AttentionSpec) else m)

    return layer


def _feeds(change: Callable[[MixerSpec, MixerSpec], MixerSpec]) -> LayerChange:
    """What changes each feed-forward after the other layer's."""

    def layer(a: BlockSpec, b: BlockSpec) -> BlockSpec:
        if not feeds(a) or not feeds(b):
            raise Impossible("a feed-forward in both")
        theirs = feeds(b)[0]
        return with_mixers(a, lambda value: change(value, theirs) if isinstance(value, ExpertSpec | MoESpec) else value)

    return layer


def mixer(a: BlockSpec, b: BlockSpec) -> BlockSpec:
    """A's layer with what mixes b's tokens; attention stays attention as it is."""
    if len(mixing(a)) != 1 or len(mixing(b)) != 1:
        raise Impossible("one mixer of tokens in a layer")
    (ours,), (theirs,) = mixing(a), mixing(b)
    stays = isinstance(ours, AttentionSpec) and isinstance(theirs, AttentionSpec)
    return a if stays else with_mixers(a, lambda value: theirs if value is ours else value)


@_attentions
def grouping(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    """A's heads on b's key/value heads, or on b's latents; where b's number does not divide, in b's proportion."""
    ours, theirs = a.projection, b.projection
    if isinstance(theirs, MLASpec):
        if a.reads != "self" or not isinstance(ours, GQASpec | MLASpec):
            raise Impossible("attention of a layer to itself")
        return a.but(projection=theirs.but(n_heads=ours.n_heads))
    if isinstance(ours, MLASpec) and isinstance(theirs, GQASpec):
        ours = theirs.but(n_heads=ours.n_heads, n_kv_heads=None, head_dim=ours.head_dim, value_dim=ours.value_dim)
    if not isinstance(ours, GQASpec) or not isinstance(theirs, GQASpec):
        raise Impossible("heads of the usual kind")
    n, k = ours.n_heads, theirs.kv_heads
    if theirs.kv_heads == theirs.n_heads:
        return a.but(projection=ours.but(n_kv_heads=None))
    k = k if n % k == 0 and k < n else n * k // theirs.n_heads
    return a.but(projection=ours.but(n_kv_heads=Count(k)))


@_attentions
def mask(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    """Whom tokens of a's own text see; what reads an encoder stays."""
    return a.but(mask=b.mask) if a.reads == "self" else a


@_attentions
def qk_norm(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    if not isinstance(a.projection, GQASpec) or not isinstance(b.projection, GQASpec):
        raise Impossible("heads of the usual kind")
    names = ("norm_query", "norm_key", "norm_over", "norm_last")
    return a.but(projection=a.projection.but(**{name: getattr(b.projection, name) for name in names}))


@_attentions
def positions(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    """What tells positions: the rotation, the scores, what is added to the values."""
    ours, theirs = getattr(a.projection, "rotary", None), getattr(b.projection, "rotary", None)
    if isinstance(a.projection, MLASpec) != isinstance(b.projection, MLASpec) and not (ours and theirs):
        raise Impossible("features that rotate")
    if theirs and not hasattr(a.projection, "rotary"):
        raise Impossible("heads of the usual kind")
    if a.reads == "memory":
        return a.but(projection=a.projection.but(rotary=None)) if ours else a
    projection = a.projection.but(rotary=theirs) if ours != theirs else a.projection
    return a.but(projection=projection, scores=b.scores, relative_values=b.relative_values)


@_attentions
def scores(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    """What scores are multiplied by, capped at, clipped to and shared with, which are left, what gates and norms their result."""
    fields = {
        name: getattr(b, name) for name in ("scale", "softcap", "sink", "query_scale", "gate", "norm", "difference")
    }
    if b.compressor is not None and not a.projection.takes_blocks:
        raise Impossible("heads whose keys and values are stored by themselves")
    for name in ("indexer", "compressor", "transient", "convolution"):
        fields[name] = getattr(b if a.reads == "self" else a, name)
    if fields["transient"] is not None and fields["transient"].misfit(a) is not None:
        raise Impossible("keys and values of the layer's own maps that do not turn")
    if fields["convolution"] is not None and fields["convolution"].misfit(a) is not None:
        raise Impossible("one value for each token and head of queries")
    clip = getattr(b.projection, "clip", None)
    if hasattr(a.projection, "clip"):
        return a.but(projection=a.projection.but(clip=clip), **fields)
    return a.but(**fields)


@_attentions
def head_dim(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    ours, theirs = a.projection, b.projection
    if not isinstance(ours, GQASpec) or not isinstance(theirs, GQASpec) or theirs.head_dim is None:
        raise Impossible("a head_dim that is said")
    return a.but(projection=ours.but(head_dim=theirs.head_dim, value_dim=theirs.value_dim))


@_attentions
def heads(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    """A's attention with b's number of heads, and as many to a key/value head as before."""
    ours, n = a.projection, getattr(b.projection, "n_heads", None)
    if n is None or not isinstance(ours, GQASpec | MLASpec):
        raise Impossible("heads")
    if isinstance(ours, MLASpec) or ours.n_kv_heads is None:
        return a.but(projection=ours.but(n_heads=n))
    k = 1 if ours.kv_heads == 1 else max(1, n * ours.kv_heads // ours.n_heads)
    return a.but(projection=ours.but(n_heads=n, n_kv_heads=Count(k)))


def _activated(a: MixerSpec, b: MixerSpec) -> MixerSpec:
    """A's feed-forward with b's activation and gate, as wide as it was."""
    if isinstance(a, MoESpec):
        shared = a.shared_expert and _activated(a.shared_expert, b)
        return a.but(expert=_activated(a.expert, b), shared_expert=shared)
    like = b.expert if isinstance(b, MoESpec) else b
    if not isinstance(a, PLAIN) or not isinstance(like, PLAIN):
        raise Impossible("a plain or gated feed-forward")
    return like.but(d_ff=a.d_ff, shared=a.shared, bias_in=a.bias_in, bias_out=a.bias_out)


def _experts(a: MixerSpec, b: MixerSpec) -> MixerSpec:
    """B's experts, as many and as wide, with a's activation; or a's expert as the one feed-forward, as wide as b's."""
    if isinstance(b, MoESpec):
        return _activated(b, a)
    if isinstance(a, MoESpec):
        return _widened(a.expert, b)
    return a


def _widened(a: MixerSpec, b: MixerSpec) -> MixerSpec:
    if isinstance(a, MoESpec) and isinstance(b, MoESpec):
        shared = a.shared_expert and b.shared_expert and _widened(a.shared_expert, b.shared_expert)
        return a.but(expert=_widened(a.expert, b.expert), shared_expert=shared or a.shared_expert)
    width: Any = getattr(b, "d_ff", None)
    if isinstance(a, MoESpec) or width is None or not hasattr(a, "d_ff"):
        raise Impossible("layers that are dense in both, or of experts in both")
    return a.but(d_ff=Width(width))


activation, experts, d_ff = _feeds(_activated), _feeds(_experts), _feeds(_widened)
feed_forward = _feeds(lambda a, b: b.but(shared=a.shared))


def biases(a: BlockSpec, b: BlockSpec) -> BlockSpec:
    """The layer with biases where the other has them: of q, k, v, the output, both ends of feed-forwards."""
    flags: dict[str, bool] = {}
    for value in (value for mixer in b.mixers for value in mixer.nested()):
        flags |= {name: getattr(value, name) for name in BIASES if isinstance(getattr(value, name, None), bool)}
    if len({isinstance(each.projection, MLASpec) for each in [*attentions(a), *attentions(b)]}) > 1:
        raise Impossible("projections of one kind")
    for part in (GQASpec, *PLAIN):
        names = set(BIASES) & {*part.__dataclass_fields__}  # type: ignore[attr-defined]
        a = changed(a, part, **{name: flags[name] for name in names if name in flags})
    return a


def wiring(a: BlockSpec, b: BlockSpec) -> BlockSpec:
    """A's mixers in b's sublayers, with a's norm where b has one."""
    norm, ready = only(norms(a)), iter(a.mixers)
    if [role(mixer) for mixer in a.mixers] != [role(mixer) for mixer in b.mixers]:
        raise Impossible("the same branches in a layer")
    placed = with_maps(b, lambda value: norm if isinstance(value, NormSpec) else value)
    return BlockSpec(sublayers=with_mixers(placed, lambda _: next(ready)).sublayers)


def placement(a: BlockSpec, b: BlockSpec) -> BlockSpec:
    """A's layer with its norm where b has norms."""
    if [len(s.branches) for s in a.sublayers] == [len(s.branches) for s in b.sublayers]:
        return wiring(a, b)
    if any(len(s.branches) != 1 for s in (*a.sublayers, *b.sublayers)):
        raise Impossible("layers of one wiring")
    norm = only(norms(a))  # two sublayers against the three of an encoder–decoder
    like = with_maps(b, lambda value: norm if isinstance(value, NormSpec) else value).sublayers[0]
    alike = (like.but(branches=(like.branches[0].but(mixer=mixer),)) for mixer in a.mixers)
    return a.but(sublayers=tuple(alike))
