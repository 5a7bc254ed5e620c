"""What a pass runs, operator by operator: the products with their shapes, and what they read and write.

FLOPs are those of `spec.cost`, term by term; a part that declares more than its linear maps explain, such as a user's own,
gets an operator of no shape for the rest. Nothing here knows dtypes or devices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from anyformer.layers.activation import ActivationSpec
from anyformer.layers.attention import AttentionSpec
from anyformer.layers.experts import StackedLinearSpec
from anyformer.layers.linear import LinearSpec
from anyformer.layers.moe import MoESpec
from anyformer.layers.norm import NormSpec
from anyformer.layers.router import RouterSpec
from anyformer.spec import (
    Cost,
    MapSpec,
    PartSpec,
    Place,
    Workload,
    inside,
)

Kind = Literal["contraction", "attention", "normalisation", "activation", "element-wise", "movement", "loss"]
SOURCE = 2**40 + 1  # no model is so wide: marks the maps of an attention that read its source
AROUND = ("scores", "values")  # terms of the attention's own kernel
PRODUCTS = ("projections", "absorption", "expansion")  # terms of its maps


@dataclass(frozen=True)
class Operator:
    """One operator of a pass; all figures are of one run of it, of which there are `times`."""

    part: str  # as the report groups them
    kind: Kind
    name: str = ""  # of the map, for rates that were measured for it
    flops: int = 0
    shape: tuple[int, int, int] | None = None  # (m, n, k) of one product of [m, k] with [k, n]
    copies: float = 1.0  # products of that shape
    weights: float = 0.0  # numbers read of weights
    cache: int = 0  # numbers read of what earlier tokens left
    numbers: int = 0  # numbers read and written of activations
    features: int = 0  # numbers that come in, for maps
    calls: int = 1  # operators that a framework launches for it
    times: int = 1


def active_experts(n_experts: int, top_k: int, tokens: int) -> float:
    """How many experts `tokens` tokens touch, on average, if each chooses `top_k` of `n_experts` evenly."""
    return n_experts * (1.0 - (1.0 - top_k / n_experts) ** tokens)


def mixer_operators(mixer: PartSpec, place: Place, workload: Workload) -> Iterator[Operator]:
    """The operators of a mixer, whose FLOPs together are what it declares."""
    declared = mixer.cost(place, workload)
    if isinstance(mixer, AttentionSpec):
        found, name = list(_attention(mixer, place, workload, declared)), "projections"
    elif isinstance(mixer, MoESpec):
        found, name = list(_mixture(mixer, place, workload)), "experts"
    else:
        name = next(iter(declared), "other")
        found = list(linears(name, mixer, place, workload.tokens))
        found += _inner(name, mixer, place, workload.tokens)
    yield from settled(found, declared, name)


def settled(found: list[Operator], declared: Cost, name: str) -> Iterable[Operator]:
    """The operators with what they leave of the declared FLOPs, or with as much less as they have too much."""
    left = declared.flops - sum(operator.flops for operator in found)
    if left > 0:
        found.append(Operator(name, "contraction", "other", flops=left))
    elif left < 0:
        products = sum(operator.flops for operator in found)
        found = [dataclasses.replace(o, flops=o.flops * declared.flops // products, shape=None) for o in found]
        first = next(i for i, o in enumerate(found) if o.flops)
        rest = declared.flops - sum(o.flops for o in found)
        found[first] = dataclasses.replace(found[first], flops=found[first].flops + rest)
    return found


def _attention(spec: AttentionSpec, place: Place, workload: Workload, declared: Cost) -> Iterator[Operator]:
    own = spec.reads != "memory"
    source = place.d_model if own else place.d_source
    made = workload.query if own else 0 if workload.past else workload.memory
    inner_place = dataclasses.replace(place, d_source=SOURCE)
    n_heads, width, value_width = spec.projection.sizes(inner_place)
    for _, part, at in inside(spec.projection, inner_place):
        reads_source = at.shape[-1] == SOURCE
        at = at.at(source) if reads_source else at
        tokens = workload.batch * (made if reads_source else workload.query)
        if tokens:
            yield from linears("projections", part, at, tokens)
            if isinstance(part, MapSpec) and not isinstance(part, LinearSpec):
                yield map_operator(part, at, tokens)
    if getattr(spec.projection, "rotary", None) is not None:
        turning = workload.batch * (
            workload.query * n_heads * width + made * width * getattr(spec.projection, "kv_heads", 1)
        )
        yield Operator("positions", "element-wise", "Rotary", features=turning, numbers=5 * turning, calls=2)
    reach = spec.reach() if own else None
    past = workload.past if reach is None else min(workload.past, reach - 1)
    held = past if own else workload.memory
    kept = sum(math.prod(shape) for shape in spec.cache_shapes(dataclasses.replace(place, d_source=source)).values())
    kernel = sum(flops for term, flops in declared.items() if term in AROUND)
    queries = workload.batch * workload.query * n_heads * (width + value_width)
    yield Operator(
        "scores and values",
        "attention",
        "causal",
        flops=kernel,
        shape=(workload.query, workload.query + past if own else workload.memory, width),
        copies=workload.batch * n_heads,
        cache=workload.batch * held * kept,
        numbers=queries + workload.batch * (made + workload.query if own else made) * kept,
        calls=2,
    )
    relative = sum(flops for term, flops in declared.items() if term not in (*AROUND, *PRODUCTS))
    if relative:
        yield Operator("scores and values", "attention", "relative", flops=relative)


def _mixture(spec: MoESpec, place: Place, workload: Workload) -> Iterator[Operator]:
    tokens, router, width = workload.tokens, spec.router, place.shape[-1]
    touched = active_experts(router.n_experts, router.top_k, tokens)
    for name, part, inner_place in inside(spec, place):
        if isinstance(part, RouterSpec):
            yield Operator(
                "router",
                "contraction",
                "Router",
                flops=router.cost(inner_place, workload).flops,
                shape=(tokens, router.n_experts, width),
                weights=router.n_experts * width,
                numbers=tokens * (width + router.n_experts),
                calls=5,
            )
        elif name == "experts":
            rows = tokens * router.top_k
            for _, inner, at in inside(part, inner_place):
                if isinstance(inner, StackedLinearSpec):
                    n, k = inner.linear.width_out(at), at.shape[-1]
                    each = max(1, math.ceil(rows / touched))
                    yield Operator(
                        "experts",
                        "contraction",
                        "Linear",
                        flops=2 * rows * n * k,
                        shape=(each, n, k),
                        copies=touched,
                        weights=touched * n * k,
                        numbers=rows * (n + k),
                        calls=math.ceil(touched),
                    )
            yield from _inner("experts", spec.expert, place, rows)
            moved = rows * width
            yield Operator("experts", "movement", "Dispatch", features=moved, numbers=4 * moved, calls=4)
        else:
            yield from linears("shared expert", part, inner_place, tokens)
            yield from _inner("shared expert", part, inner_place, tokens)


def linears(name: str, part: PartSpec, place: Place, tokens: int) -> Iterator[Operator]:
    """Yield a product for each linear map in a part."""
    if isinstance(part, LinearSpec):
        n, k = part.width_out(place), place.shape[-1]
        yield Operator(
            name,
            "contraction",
            "Linear",
            flops=2 * tokens * n * k,
            shape=(tokens, n, k),
            weights=n * k + (n if part.bias else 0),
            numbers=tokens * (n + k),
        )
        return
    for _, inner, at in inside(part, place):
        yield from linears(name, inner, at, tokens)


def _inner(name: str, mixer: PartSpec, place: Place, tokens: int) -> Iterator[Operator]:
    """What is between the linear maps of a feed-forward: the activation, and the product with the gate's other half."""
    width = getattr(mixer, "d_ff", None)
    activation = getattr(mixer, "activation", None)
    if width and isinstance(activation, ActivationSpec):
        gated = sum(1 for _, part, _ in inside(mixer, place) if isinstance(part, LinearSpec)) > 2
        features = tokens * width
        yield Operator(
            name,
            "activation",
            named(activation) + (" gated" if gated else ""),
            features=features,
            numbers=(3 if gated else 2) * features,
            calls=2 if gated else 1,
        )


def named(part: PartSpec) -> str:
    """The kind of a map, with the form where it has several."""
    form = getattr(part, "form", None)
    return f"{part.kind} {form}" if form else part.kind


def map_operator(part: MapSpec, place: Place, tokens: int) -> Operator:
    features = tokens * math.prod(place.shape)
    weights = float(sum(w.numel for w in part.weights(place).values() if w is not None))
    kind: Kind = "normalisation" if isinstance(part, NormSpec) else "element-wise"
    return Operator("norms", kind, part.kind, features=features, numbers=2 * features, weights=weights)
