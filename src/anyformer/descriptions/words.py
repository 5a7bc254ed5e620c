"""Parts of a specification in the words of papers and PyTorch, which tell any two apart: what differs is never said alike.

A part without a word of its own here, a user's among them, is said by its kind and the fields that are not at their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from itertools import groupby
from typing import Any

from anyformer.descriptions.facts import Where, head_sharing, shows_nothing
from anyformer.layers import (
    AddByDepthSpec,
    AddSpec,
    And,
    ByRole,
    Causal,
    Everything,
    FactorisedPositionsSpec,
    FirstBlockAgainSpec,
    GatedFeedForwardSpec,
    GatedRMSNormSpec,
    GQASpec,
    GroupsSpec,
    Heads,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    LocalAndGlobalSpec,
    Mask,
    MLASpec,
    MuP,
    Normal,
    Not,
    Or,
    Prefix,
    RelativeBucketsSpec,
    RMSNormSpec,
    RotarySpec,
    StreamsSpec,
    Xavier,
)
from anyformer.layers.causality import sees_later_tokens
from anyformer.spec import BranchSpec, HeadLayersSpec, InitSpec, MapSpec, ResidualSpec, ScaleSpec, Spec

KINDS = {
    "Rotary": "RoPE",
    "TokenDropout": "masked ones dropped",
    "Sinusoid": "sinusoids",
    "LearnedPositions": "learned",
    "FactorisedPositions": "learned, factorised",
    "AxialPositions": "learned, axial",
    "LSHAttention": "LSH attention",
    "NystromAttention": "Nyström attention",
    "RelativeBuckets": "relative position bias (T5)",
    "BySegment": "relative segments",
    "FirstBlockAgain": "first block again (BigBird)",
    "RelativeSinusoid": "relative sinusoids (Transformer-XL)",
    "ReLU2": "squared ReLU",
    "Engram": "n-gram embedding (Engram)",
    "GatedResidual": "gated residual",
    "GatedStreams": "gated residual",
    "HyperConnection": "hyper-connections",
    "HyperStreams": "hyper-connected",
    "Llama3Scaling": "Llama 3's scaling",
    "LinearScaling": "linear scaling",
    "ProportionalRoPE": "p-RoPE",
    "DynamicNTK": "dynamic NTK",
    "ShawKeys": "relative keys (Shaw)",
    "ShawValues": "relative values (Shaw)",
    "ContentToPosition": "content to position (DeBERTa)",
    "PositionToContent": "position to content (DeBERTa)",
    "RelativeTable": "relative embeddings",
    "Add": "x + branch",
    "Reversible": "reversible, two streams",
    "Laurel": "LAuReL",
    "PerLayerEmbedding": "per-layer embedding",
    "CausalConvolution": "causal convolution",
    "ShortConvolution": "short convolution",
    "ResidualConvolution": "convolution added",
    "DistanceProfiles": "profiles of distance",
    "RGLRU": "RG-LRU",
    "S6": "Mamba (S6)",
    "SSD": "Mamba-2 (SSD)",
    "GatedDeltaNet": "gated DeltaNet",
    "LightningAttention": "lightning attention",
    "ChannelMix": "channel mixing",
    "MLSTM": "mLSTM",
    "SpanConvolution": "span-based convolution",
    "Fourier": "Fourier transform",
    "MarkedKeys": "marked keys",
    "MarkedQueries": "marked queries",
    "FirstToken": "first token",
    "LastToken": "last token",
    "MeanTokens": "mean of tokens",
    "CapacityFactor": "capacity factor",
    "Shortened": "layers on blocks of tokens",
    "Block": "layer",
    "Sublayer": "sublayer",
    "FixedCapacity": "fixed capacity",
}
FIELDS = {
    "n_positions": "positions",
    "n_buckets": "buckets",
    "n_segments": "segments",
    "factor": "×",
    "unsaid": "default",
    "blocks": "",
    "sublayers": "",
    "branches": "",
    "mixer": "",
}
SHARING = {"MHA": "multi-head", "GQA": "grouped-query", "MQA": "multi-query", "MLA": "multi-head latent"}
PLACEMENTS: dict[frozenset[Where], str] = {
    frozenset(): "no norm",
    frozenset({"in"}): "pre-norm",
    frozenset({"sum"}): "post-norm",
    frozenset({"out"}): "output norm (after each branch)",
    frozenset({"in", "out"}): "sandwich norm (before and after each branch)",
    frozenset({"in", "sum"}): "pre- and post-norm",
    frozenset({"out", "sum"}): "output and post-norm",
    frozenset({"in", "out", "sum"}): "sandwich and post-norm",
}
MASKS = {  # of the fields of each
    "SlidingWindow": "window of {size:,}",
    "SymmetricWindow": "window of {radius:,} to each side",
    "LookAhead": "{size:,} ahead",
    "Strided": "every {stride:,}th",
    "SameBlock": "blocks of {size:,}",
    "AdjacentBlocks": "blocks of {size:,}, {before:,} before and {after:,} after",
    "BlockEnds": "the last {last:,} of each block of {size:,}",
    "Prefix": "prefix of {size:,}",
    "LocalAndVertical": "blocks of {size:,}, {near:,} near ones and every {stride:,}th",
    "GlobalBlocks": "blocks of {size:,}: first, last, three near ones, {n_random} random ones",
    "TwoStreams": "two streams, in the order of a permutation",
}


def number(value: float) -> str:
    """A number as it is read: 10,000, 0.02, 1e-6."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:g}".replace("e-0", "e-").replace("e+0", "e")


def each(said: Iterable[str | None], between: str = " / ") -> str:
    """Different phrases once each."""
    return between.join(dict.fromkeys(filter(None, said)))


def phrase(value: Any, called: str | None = None, *, without: Sequence[str] = ()) -> str:
    """Any value in words: its kind, or what it is `called`, and every field that is not at its default.

    Fields that `called` tells already, or another row, are left out by their names.
    """
    if isinstance(value, bool) or not isinstance(value, Spec | tuple | int | float):
        return str(value)
    if isinstance(value, tuple):
        if len(value) > 4 and all(isinstance(item, int | float) for item in value):
            return f"{len(value)} numbers from {number(min(value))} to {number(max(value))}"
        runs = ((len(list(run)), phrase(item)) for item, run in groupby(value))
        return " & ".join(f"{n} × {said}" if n > 1 else said for n, said in runs)
    if not isinstance(value, Spec):
        return number(value)
    said = []
    for name, part in value.values().items():
        field = type(value).__dataclass_fields__[name]  # type: ignore[attr-defined]
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if name in without or name == "shared" or part == default:
            continue
        title = FIELDS.get(name, name.replace("_", " "))
        if isinstance(part, bool) or part is None:
            said.append(title if part else f"no {title}")
        elif isinstance(part, ScaleSpec):
            said.append(f"{title} {scale(part, 'width')}")
        else:
            titled = name not in ("masks", "maps", "scaling", "rotary")
            said.append(f"{title} {phrase(part)}".strip() if titled else phrase(part))
    if isinstance(value, BranchSpec) and len(said) == 1:
        return said[0]
    return _with(called or kind(value), said)


def kind(value: Spec) -> str:
    """What a part is called, without its sizes."""
    return KINDS.get(value.kind, value.kind)


def _with(called: str, said: Sequence[str]) -> str:
    return f"{called} ({', '.join(said)})" if said else called


def scale(value: ScaleSpec, width: str) -> str:
    """A scale as a product: "√d_model", "1/√d_model", "0.0625"."""
    if value.power == 0:
        return number(value.factor)
    usual = {0.5: f"√{width}", -0.5: f"1/√{width}", 1.0: width, -1.0: f"1/{width}"}
    power = usual.get(value.power, f"{width}^{number(value.power)}")
    power = power if value.rounded == "no" else f"{power} in {value.rounded}"
    return power if value.factor == 1 else f"{number(value.factor)} · {power}"


def residual(value: ResidualSpec) -> str:
    """What becomes of the stream x when a branch writes to it."""
    if value.n_streams > 1:
        streams = "streams" if isinstance(value, StreamsSpec) else f"{kind(value)} streams"
        return phrase(value, f"{value.n_streams} {streams}", without=("n",))
    if isinstance(value, AddByDepthSpec):
        factors = (ScaleSpec(power=value.power), value.branch)
        x, y = (f"{scale(n, 'branches')} · " if n != ScaleSpec() else "" for n in factors)
        return f"{x}x + {y}branch"
    if not isinstance(value, AddSpec):
        return phrase(value)
    x, y = (f"{number(n)} · " if n != 1 else "" for n in (value.scale, value.branch))
    return f"{x}x + {y}branch" if value.scale else f"{y}branch alone, not added to x"


def start(value: InitSpec) -> str:
    """The distributions from which weights start, roles that start alike together."""
    if not isinstance(value, ByRole):
        return phrase(value)
    named = {"embeddings": value.table, "matrices": value.matrix, "into the residual stream": value.output}
    named |= {"values and into feed-forwards": value.inner, "queries": value.query}
    roles: dict[str, list[str]] = {}
    for role, drawn in named.items():
        if drawn is not None:
            roles.setdefault(_drawn(drawn), []).append(role)
    said = next(iter(roles)) if len(roles) == 1 else "; ".join(f"{', '.join(who)}: {how}" for how, who in roles.items())
    return f"μP from a width of {number(value.base)}; {said}" if isinstance(value, MuP) else said


def _drawn(value: Spec) -> str:
    if not isinstance(value, Normal | Xavier):
        return phrase(value)
    called, factor = ("normal, std", value.scale) if isinstance(value, Normal) else ("Xavier uniform, gain", value.gain)
    powers = {"fan-in": getattr(value, "fan_in_power", 0.0), "branches": value.depth_power}
    factors = [scale(ScaleSpec(power=power), of) for of, power in powers.items() if power]
    if factor != 1 or not factors:
        factors = [number(factor), *factors]
    return f"{called} {' · '.join(factors)}"


def norm(value: MapSpec | None, *, exact: bool = False) -> str:
    """A norm, "RMSNorm (gain stored minus 1)"; `exact`: with eps and the order of casts, which a card leaves to other rows."""
    if not isinstance(value, LayerNormSpec | RMSNormSpec):
        return "none" if value is None else phrase(value)
    bias = getattr(value, "bias", False)
    said = [f"eps {number(value.eps)}"] if exact else []
    said += [] if value.weight else ["no gain" if bias else "no weights"]
    said += ["no bias"] if value.weight and not bias and isinstance(value, LayerNormSpec) else []
    said += [f"gain stored minus {number(value.weight_offset)}"] if value.weight_offset else []
    said += [f"gated, of {value.rank:,}"] if isinstance(value, GatedRMSNormSpec) else []
    said += [f"cast {value.cast} the gain"] if exact and getattr(value, "cast", "before") != "before" else []  # type: ignore[union-attr]
    return _with(value.kind, said)


def direction(value: Mask) -> str:
    """Whether tokens see later ones; the one question that makes an encoder or a decoder, asked of the mask itself."""
    if not sees_later_tokens(value):
        return "causal"
    return "bidirectional" if sees_later_tokens(value, after_prefix=True) else "causal after a prefix"


def mask(value: Mask) -> str:
    """The keys that a query sees among those that the direction allows."""
    match value:
        case And() | Not() if shows_nothing(value):
            return "none"
        case And(masks=masks):
            return " and ".join(mask(each) for each in masks if not isinstance(each, Causal)) or "full"
        case Or(masks=masks) if set(masks) == {Causal(), Prefix()}:
            return "full"
        case Or(masks=masks):
            return " or ".join(map(_inner, masks))
        case Not(mask=inner):
            return f"not {_inner(inner)}"
        case Heads(masks=masks):
            return f"by head: {', '.join(map(mask, masks))}"
        case Causal() | Everything():
            return "full"
        case Prefix(size=None):
            return "prefix"
        case _:
            return MASKS[value.kind].format(**value.values()) if value.kind in MASKS else phrase(value)


def _inner(value: Mask) -> str:
    return "earlier tokens" if isinstance(value, Causal) else mask(value)


def seen(value: Mask) -> str:
    """Direction and keys together: "causal, window of 4,096"."""
    return each((direction(value), None if mask(value) == "full" else mask(value)), ", ")


def rotary(value: RotarySpec) -> str:
    """Rotary positions: theta always, the rest where it is not usual."""
    said = [f"theta {number(value.theta)}"]
    said += [f"{number(100 * value.fraction)} % of each head"] if value.fraction != 1 else []
    said += [f"{value.layout} pairs"] if value.layout != "half" else []
    said += [f"the {value.where} features"] if value.where != "first" else []
    said += ["backwards"] if value.backwards else []
    said += [phrase(value.scaling)] if value.scaling is not None else []
    said += [f"learned frequencies{'' if value.learned.shared else ' a layer'}"] if value.learned else []
    return _with(kind(value), said)


def position(value: Any) -> str:
    """A position scheme: a term of the embedding, a score of attention, what attention adds to the values."""
    match value:
        case RotarySpec():
            return rotary(value)
        case LearnedPositionsSpec(n_positions=n):
            return phrase(value, f"learned, {n:,}", without=("n_positions",))
        case FactorisedPositionsSpec(shape=shape):
            return phrase(value, f"{kind(value)} {' × '.join(map(str, shape))}", without=("shape",))
        case GroupsSpec():
            return f"{value.n} {value.called}"
        case RelativeBucketsSpec(n_buckets=n, max_distance=far):
            called = f"{kind(value)}, {n} buckets up to {far:,}"
            return phrase(value, called, without=("n_buckets", "max_distance"))
        case FirstBlockAgainSpec(size=size, n_random=n):
            return f"the first block of {size} counted {n + 1} times"
        case _:
            return phrase(value)


def heads(projection: Any) -> str:
    """How query heads share keys and values, in full: "grouped-query"."""
    sharing = head_sharing(projection)
    if sharing is None:
        return phrase(projection)
    return SHARING[sharing] + (", local and global" if isinstance(projection, LocalAndGlobalSpec) else "")


def scale_correction(value: MLASpec) -> list[str]:
    """By what latents are multiplied, where they are, and of what queries are, if not of the normed one alone."""
    said = ["latents × √(d_model / rank)"] if value.scale_correction else []
    return [*said, *(["queries of theirs before and after"] if value.unnormed else [])]


def shared_maps(value: GQASpec | GatedFeedForwardSpec) -> list[str]:
    """That the maps of attention or of a feed-forward are others' too, and what is added to them."""
    said = [f"maps shared ({value.common})"] if value.common is not None else []
    return [*said, *([f"of its own a rank of {value.adapter:,}"] if value.adapter is not None else [])]


def step(value: MapSpec) -> str:
    """One step of a head's transform or of an embedding, in a word or two."""
    if isinstance(value, LinearSpec):
        return "Linear" if value.d_out is None else f"Linear to {value.d_out:,}"
    return norm(value)


def of_a_head(value: HeadLayersSpec) -> str:
    """The layers that a head has of its own."""
    n, begin = len(value.blocks), f", beginning {value.before} before the last" if value.before else ""
    terms = f", {' and '.join(position(term) for term in value.terms)} positions added" if value.terms else ""
    return f"{n} layer{'s' if n > 1 else ''} of its own{begin}{terms}"
