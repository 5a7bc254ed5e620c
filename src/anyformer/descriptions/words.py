"""Parts in the field's words; a part that has no word here, a user's own among them, by its kind and its fields."""

from __future__ import annotations

from typing import Any

from anyformer.layers import (
    GELU,
    ALiBiSpec,
    And,
    BlockEnds,
    BySegmentSpec,
    Causal,
    Everything,
    FactorisedPositionsSpec,
    FirstBlockAgainSpec,
    GatedFeedForwardSpec,
    GlobalBlocks,
    Heads,
    LayerNormSpec,
    LearnedPositionsSpec,
    LinearSpec,
    LocalAndGlobalSpec,
    LocalAndVertical,
    MarkedKeys,
    MarkedQueries,
    MLASpec,
    Not,
    Or,
    Prefix,
    RelativeBucketsSpec,
    RelativeSinusoidSpec,
    ReLU,
    ReLU2,
    RMSNormSpec,
    SameBlock,
    SegmentsSpec,
    Sigmoid,
    SiLU,
    SinusoidSpec,
    SlidingWindow,
    Strided,
    SymmetricWindow,
    TwoStreams,
)
from anyformer.spec import BlockSpec, HeadLayersSpec, MapSpec, MixerSpec, ScaleSpec, Spec

FORMS = {"erf": "", "tanh": " (tanh form)", "quick": " (x·σ(1.702 x))"}
GATED = {"SiLU": "SwiGLU", "GELU": "GeGLU", "ReLU": "ReGLU", "Sigmoid": "GLU", "Identity": "bilinear"}


def number(value: float) -> str:
    """Return a number as it is read: 10,000, 0.02, 1e-06."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:g}"


def part(value: Any) -> str:
    """Any value by its kind and the fields that are not at their defaults."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return number(value)
    if not isinstance(value, Spec):
        return str(value)
    default = {name: field.default for name, field in type(value).__dataclass_fields__.items()}  # type: ignore[attr-defined]
    said = []
    for name, inner in value.values().items():
        if name == "shared" or inner == default[name]:
            continue
        if isinstance(inner, tuple) and inner:
            few = [*map(part, inner[:3]), *(["…"] if len(inner) > 3 else [])]
            said.append(f"{name.replace('_', ' ')} {', '.join(few)}")
        else:
            said.append(name.replace("_", " ") + ("" if inner is True else f" {part(inner)}"))
    return f"{value.kind} ({', '.join(said)})" if said else value.kind


def mask(value: Any) -> str:
    """Which keys a query sees; what makes it causal is said once, by `causal`."""
    match value:
        case And(masks=masks):
            others = [m for m in masks if not isinstance(m, Causal)]
            return " and ".join(map(mask, others)) or "full"
        case Or(masks=masks):
            return " or ".join(map(mask, masks))
        case Not(mask=inner):
            return f"not {mask(inner)}"
        case Heads(masks=masks):
            return f"by head: {', '.join(map(mask, masks))}"
        case Causal() | Everything():
            return "full"
        case SlidingWindow(size=size):
            return f"window of {size:,}"
        case SymmetricWindow(radius=radius):
            return f"window of {radius:,} to each side"
        case Strided(stride=stride):
            return f"every {stride:,}th"
        case SameBlock(size=size):
            return f"blocks of {size:,}"
        case BlockEnds(size=size, last=last):
            return f"the last {last:,} of each block of {size:,}"
        case Prefix(size=size):
            return "prefix" if size is None else f"prefix of {size:,}"
        case LocalAndVertical(size=size, near=near, stride=stride):
            return f"blocks of {size:,}, {near:,} near ones and every {stride:,}th"
        case MarkedKeys():
            return "marked keys"
        case MarkedQueries():
            return "for marked tokens"
        case GlobalBlocks(size=size):
            return f"blocks of {size:,}, the first, the last and three near ones"
        case TwoStreams():
            return "earlier ones in any order, full without"
        case _:
            return part(value)


def causal(value: Any) -> bool:
    """Whether a mask says that nothing later is seen: by itself, or as one of masks that must all hold."""
    match value:
        case Causal():
            return True
        case And(masks=masks):
            return any(map(causal, masks))
        case Heads(masks=masks):
            return all(map(causal, masks))
        case _:
            return False


def activation(value: Any, gated: bool) -> str:
    """What is between the matrices of a feed-forward: "GELU (tanh form)", "SwiGLU"."""
    name = value.kind
    if gated and name in GATED:
        name = GATED[name]
    elif gated:
        name = f"gated {part(value)}"
    elif not isinstance(value, GELU | SiLU | ReLU | Sigmoid):
        name = "squared ReLU" if isinstance(value, ReLU2) else part(value)
    return name + (FORMS[value.form] if isinstance(value, GELU) else "")


def norm(value: MapSpec) -> str:
    """Return a norm without its eps, which has a row of its own, "RMSNorm (gain stored minus 1)"; another map as `part` does."""
    if not isinstance(value, LayerNormSpec | RMSNormSpec):
        return part(value)
    said = []
    if not value.weight:
        said.append("no weights" if isinstance(value, RMSNormSpec) or not value.bias else "no gain")
    elif isinstance(value, LayerNormSpec) and not value.bias:
        said.append("no bias")
    if value.weight_offset:
        said.append(f"gain stored minus {number(value.weight_offset)}")
    return value.kind + (f" ({', '.join(said)})" if said else "")


def feed_forward(value: Any) -> str:
    """Return a feed-forward's name by its activation and whether it is gated."""
    said = [activation(value.activation, isinstance(value, GatedFeedForwardSpec))]
    if isinstance(value, GatedFeedForwardSpec):
        said += [f"clamped at {number(value.limit)}"] if value.limit is not None else []
        said += [f"up + {number(value.up_offset)}"] if value.up_offset else []
    return ", ".join(said)


def heads(projection: Any) -> str:
    """The name of a projection by how queries share keys."""
    if isinstance(projection, MLASpec):
        return "multi-head latent"
    if isinstance(projection, LocalAndGlobalSpec):
        return "multi-head, local and global"
    n_heads, n_kv = getattr(projection, "n_heads", None), getattr(projection, "kv_heads", None)
    if n_heads is None or n_kv is None:
        return projection.kind
    return "multi-head" if n_heads == n_kv else "multi-query" if n_kv == 1 else "grouped-query"


def position(value: Any) -> str:
    """Return a position scheme that is a term of the embedding or a score of attention."""
    match value:
        case LearnedPositionsSpec(n_positions=n):
            return f"learned, {n:,}" + (f" and {value.offset} unused rows" if value.offset else "")
        case FactorisedPositionsSpec(shape=shape):
            return f"learned, factorised {' × '.join(map(str, shape))}"
        case SinusoidSpec():
            return "sinusoids"
        case SegmentsSpec(n_segments=n):
            return f"{n} segments"
        case ALiBiSpec():
            return "ALiBi"
        case RelativeBucketsSpec(n_buckets=n, max_distance=far):
            return f"relative buckets, {n} up to a distance of {far:,}"
        case RelativeSinusoidSpec():
            return "relative sinusoids (Transformer-XL)"
        case BySegmentSpec():
            return "the same segment or not"
        case FirstBlockAgainSpec(n_random=n):
            return f"the first block counted {n + 1} times"
        case _:
            return part(value)


def scale(value: ScaleSpec, width: str) -> str:
    """Return a scale as a product: "√d_model", "1/√d_model", "0.0625"."""
    power = {0.5: f"√{width}", -0.5: f"1/√{width}", 1.0: width, -1.0: f"1/{width}"}.get(value.power)
    if value.power == 0:
        return number(value.factor)
    power = f"{width}^{number(value.power)}" if power is None else power
    return power if value.factor == 1 else f"{number(value.factor)} · {power}"


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


def mixers(block: BlockSpec) -> list[MixerSpec]:
    """What the branches of a layer do, in order."""
    return [branch.mixer for sublayer in block.sublayers for branch in sublayer.branches]
