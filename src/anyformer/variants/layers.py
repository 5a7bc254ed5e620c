"""One thing of a layer changed to what another's layer has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from anyformer.errors import SpecError
from anyformer.families.compose import changed
from anyformer.layers import (
    AttentionSpec,
    FeedForwardSpec,
    GatedFeedForwardSpec,
    GQASpec,
    MLASpec,
    MoESpec,
)
from anyformer.layers.feed_forward import ExpertSpec
from anyformer.layers.norm import NormSpec
from anyformer.spec import BlockSpec, BranchSpec, Count, MixerSpec, SublayerSpec, Width
from anyformer.variants.parts import attentions, feeds, role

LayerChange = Callable[[BlockSpec, BlockSpec], BlockSpec]
T = TypeVar("T")
BIASES = ("bias_query", "bias_key", "bias_value", "bias_output", "bias_in", "bias_out")


class Impossible(SpecError):
    """One of the two has no place for the other's part, so that it cannot be changed by itself."""

    def __init__(self, what: str) -> None:
        super().__init__(f"there is no place for it: that needs {what}")


def only(values: Iterable[T]) -> T:
    """The one value that all are. Raises Impossible where there is none, or more than one."""
    found = list(dict.fromkeys(values))
    if len(found) != 1:
        raise Impossible("one kind of it")
    return found[0]


def _mixers(block: BlockSpec, change: Callable[[MixerSpec], MixerSpec]) -> BlockSpec:
    """The layer with every mixer changed."""
    sublayers = []
    for sublayer in block.sublayers:
        branches = tuple(branch.but(mixer=change(branch.mixer)) for branch in sublayer.branches)
        sublayers.append(sublayer.but(branches=branches))
    return block.but(sublayers=tuple(sublayers))


def _attentions(change: Callable[[AttentionSpec, AttentionSpec], AttentionSpec], *, own: bool = False) -> LayerChange:
    """What changes each attention after the other layer's that reads the same, or after its own to itself."""

    def layer(a: BlockSpec, b: BlockSpec) -> BlockSpec:
        theirs = {other.reads: other for other in attentions(b, reads=None)}
        if "self" not in theirs or not attentions(a):
            raise Impossible("attention in both")

        def mixer(value: MixerSpec) -> MixerSpec:
            if not isinstance(value, AttentionSpec) or (own and value.reads != "self"):
                return value
            return change(value, theirs.get(value.reads, theirs["self"]))

        return _mixers(a, mixer)

    return layer


def _feeds(change: Callable[[MixerSpec, MixerSpec], MixerSpec]) -> LayerChange:
    """What changes each feed-forward after the other layer's."""

    def layer(a: BlockSpec, b: BlockSpec) -> BlockSpec:
        if not feeds(a) or not feeds(b):
            raise Impossible("a feed-forward in both")
        theirs = feeds(b)[0]
        return _mixers(a, lambda value: change(value, theirs) if isinstance(value, ExpertSpec | MoESpec) else value)

    return layer


def _grouping(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    """Return a's heads on b's key/value heads, or on b's latents; where b's number does not divide, in b's proportion."""
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


def _qk_norm(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    if not isinstance(a.projection, GQASpec) or not isinstance(b.projection, GQASpec):
        raise Impossible("heads of the usual kind")
    names = ("norm_query", "norm_key", "norm_over")
    return a.but(projection=a.projection.but(**{name: getattr(b.projection, name) for name in names}))


def _positions(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    ours, theirs = getattr(a.projection, "rotary", None), getattr(b.projection, "rotary", None)
    if isinstance(a.projection, MLASpec) != isinstance(b.projection, MLASpec) and not (ours and theirs):
        raise Impossible("features that rotate")
    if theirs and not hasattr(a.projection, "rotary"):
        raise Impossible("heads of the usual kind")
    if a.reads == "memory":
        return a.but(projection=a.projection.but(rotary=None)) if ours else a
    projection = a.projection.but(rotary=theirs) if ours != theirs else a.projection
    return a.but(projection=projection, scores=b.scores, relative_values=b.relative_values)


def _scores(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    fields = {name: getattr(b, name) for name in ("scale", "softcap", "sink", "logn")}
    clip = getattr(b.projection, "clip", None)
    if hasattr(a.projection, "clip"):
        return a.but(projection=a.projection.but(clip=clip), **fields)
    return a.but(**fields)


def _head_dim(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    ours, theirs = a.projection, b.projection
    if not isinstance(ours, GQASpec) or not isinstance(theirs, GQASpec) or theirs.head_dim is None:
        raise Impossible("a head_dim that is said")
    return a.but(projection=ours.but(head_dim=theirs.head_dim, value_dim=theirs.value_dim))


def _heads(a: AttentionSpec, b: AttentionSpec) -> AttentionSpec:
    """Return a's attention with b's number of heads, and as many to a key/value head as before."""
    ours, n = a.projection, getattr(b.projection, "n_heads", None)
    if n is None or not isinstance(ours, GQASpec | MLASpec):
        raise Impossible("heads")
    if isinstance(ours, MLASpec) or ours.n_kv_heads is None:
        return a.but(projection=ours.but(n_heads=n))
    k = 1 if ours.kv_heads == 1 else max(1, n * ours.kv_heads // ours.n_heads)
    return a.but(projection=ours.but(n_heads=n, n_kv_heads=Count(k)))


def _activation(a: MixerSpec, b: MixerSpec) -> MixerSpec:
    """Return a's feed-forward with b's activation and gate, as wide as it was."""
    if isinstance(a, MoESpec):
        shared = a.shared_expert and _activation(a.shared_expert, b)
        return a.but(expert=_activation(a.expert, b), shared_expert=shared)
    like = b.expert if isinstance(b, MoESpec) else b
    if not isinstance(a, FeedForwardSpec | GatedFeedForwardSpec):
        raise Impossible("a plain or gated feed-forward")
    biases = {"bias_in": a.bias_in, "bias_out": a.bias_out}
    if isinstance(like, FeedForwardSpec | GatedFeedForwardSpec):
        return like.but(d_ff=a.d_ff, shared=a.shared, **biases)
    raise Impossible("a plain or gated feed-forward")


def _experts(a: MixerSpec, b: MixerSpec) -> MixerSpec:
    """Return b's experts, as many and as wide, with a's activation; or a's expert as the one feed-forward, as wide as b's."""
    if isinstance(b, MoESpec):
        own = a.expert if isinstance(a, MoESpec) else a
        shared = b.shared_expert and _activation(b.shared_expert, own)
        return b.but(expert=_activation(b.expert, own), shared_expert=shared)
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


def _biases(a: BlockSpec, b: BlockSpec) -> BlockSpec:
    """The layer with biases where the other has them: of q, k, v, the output, both ends of feed-forwards."""
    flags: dict[str, bool] = {}
    for branch in (branch for sublayer in b.sublayers for branch in sublayer.branches):
        for value in branch.mixer.nested():
            flags |= {name: getattr(value, name) for name in BIASES if isinstance(getattr(value, name, None), bool)}
    latent = any(isinstance(m.projection, MLASpec) for m in [*attentions(a), *attentions(b)])
    if latent and not all(isinstance(m.projection, MLASpec) for m in [*attentions(a), *attentions(b)]):
        raise Impossible("projections of one kind")
    for part in (GQASpec, FeedForwardSpec, GatedFeedForwardSpec):
        names = set(BIASES) & {*part.__dataclass_fields__}  # type: ignore[attr-defined]
        a = changed(a, part, **{name: flags[name] for name in names if name in flags})
    return a


def _wiring(a: BlockSpec, b: BlockSpec) -> BlockSpec:
    """Return a's mixers in b's sublayers, with a's norm where b has one."""
    norm = only(_norms(a))
    own, theirs = [list(_branches(block)) for block in (a, b)]
    if [role(branch.mixer) for branch in own] != [role(branch.mixer) for branch in theirs]:
        raise Impossible("the same branches in a layer")
    ready = iter(own)

    def branch(like: BranchSpec) -> BranchSpec:
        mixer = next(ready).mixer
        return BranchSpec(mixer=mixer, norm_in=_norm(like.norm_in, norm), norm_out=_norm(like.norm_out, norm))

    sublayers = [
        SublayerSpec(
            branches=tuple(branch(each) for each in sublayer.branches),
            norm_in=_norm(sublayer.norm_in, norm),
            norm_sum=_norm(sublayer.norm_sum, norm),
        )
        for sublayer in b.sublayers
    ]
    return BlockSpec(sublayers=tuple(sublayers))


def _placement(a: BlockSpec, b: BlockSpec) -> BlockSpec:
    if [len(s.branches) for s in a.sublayers] == [len(s.branches) for s in b.sublayers]:
        return _wiring(a, b)
    if any(len(s.branches) != 1 for s in (*a.sublayers, *b.sublayers)):
        raise Impossible("layers of one wiring")
    norm, like = only(_norms(a)), b.sublayers[0]  # two sublayers against the three of an encoder–decoder
    places = {"norm_in": _norm(like.norm_in, norm), "norm_sum": _norm(like.norm_sum, norm)}
    inner = {"norm_in": _norm(like.branches[0].norm_in, norm), "norm_out": _norm(like.branches[0].norm_out, norm)}
    each = [s.but(branches=tuple(x.but(**inner) for x in s.branches), **places) for s in a.sublayers]
    return a.but(sublayers=tuple(each))


def _branches(block: BlockSpec) -> Iterable[BranchSpec]:
    return (branch for sublayer in block.sublayers for branch in sublayer.branches)


def _norms(block: BlockSpec) -> Iterable[NormSpec]:
    places = [place for s in block.sublayers for place in (s.norm_in, s.norm_sum)]
    places += [place for branch in _branches(block) for place in (branch.norm_in, branch.norm_out)]
    return (place for place in places if isinstance(place, NormSpec))


def _norm(like: object, norm: NormSpec) -> Any:
    return norm if isinstance(like, NormSpec) else like


LAYERS: Mapping[str, LayerChange] = {
    "attention": _attentions(_grouping),
    "who sees whom": _attentions(lambda a, b: a.but(mask=b.mask), own=True),
    "QK-norm": _attentions(_qk_norm),
    "positions": _attentions(_positions),
    "scores": _attentions(_scores),
    "heads": _attentions(_heads),
    "head_dim": _attentions(_head_dim),
    "activation": _feeds(_activation),
    "experts": _feeds(_experts),
    "d_ff": _feeds(_widened),
    "feed-forward": _feeds(lambda a, b: b.but(shared=a.shared)),
    "biases": _biases,
    "wiring": _wiring,
    "norm placement": _placement,
}
