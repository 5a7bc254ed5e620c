"""Where an architecture's proportions stand among the published ones, which are read from the presets themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from anyformer.descriptions.facts import attentions
from anyformer.descriptions.grouping import distinct_layers
from anyformer.descriptions.words import number
from anyformer.families import PRESETS
from anyformer.layers import FeedForwardSpec, GatedFeedForwardSpec, MoESpec
from anyformer.spec import Architecture, ModelSpec, specification
from anyformer.variants.parts import mixers

USUAL = (0.1, 0.9)  # the share of published models below and above what is usual
FENCE = 1.5  # interquartile ranges beyond the quartiles, of logarithms: what lies further breaks the rule (Tukey 1977)
WIDTH = 28  # characters of a strip


class Ratio(NamedTuple):
    """A proportion that the field has a habit about."""

    key: str
    name: str
    rule: str  # the habit, in a few words
    of: Callable[[ModelSpec], float | None]  # None where it does not apply


@dataclass(frozen=True)
class FieldPosition:
    """One proportion of an architecture, and those of the published ones that have it."""

    key: str
    name: str
    rule: str
    value: float
    published: Mapping[str, float]  # by preset, ascending

    @property
    def low(self) -> float:
        """The least published."""
        return min(self.published.values())

    @property
    def high(self) -> float:
        """The greatest published."""
        return max(self.published.values())

    @property
    def usual(self) -> tuple[float, float]:
        """Between which four of five published models lie."""
        values = list(self.published.values())
        return _quantile(values, USUAL[0]), _quantile(values, USUAL[1])

    @property
    def beyond(self) -> bool:
        """Whether no published model goes so far."""
        return not self.low * (1 - 1e-9) <= self.value <= self.high * (1 + 1e-9)

    @property
    def outliers(self) -> dict[str, float]:
        """The presets that break the habit, the furthest first."""
        logs = [math.log(value) for value in self.published.values()]
        low, middle, high = (_quantile(logs, share) for share in (0.25, 0.5, 0.75))
        reach = FENCE * (high - low) + 1e-9
        far = {n: v for n, v in self.published.items() if not low - reach <= math.log(v) <= high + reach}
        return dict(sorted(far.items(), key=lambda item: -abs(math.log(item[1]) - middle)))

    @property
    def range_in_words(self) -> str:
        """The published range, and what is usual within it."""
        low, high = self.usual
        inside = "" if (low, high) == (self.low, self.high) else f", mostly {_span(self.shown(low), self.shown(high))}"
        return f"{_span(self.shown(self.low), self.shown(self.high))}{inside}"

    def shown(self, value: float) -> str:
        """Return a value as it is read."""
        return number(value) if float(value).is_integer() else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"

    @property
    def strip(self) -> str:
        """The published range on a logarithmic scale: ━ where most are, ● where this one is."""
        ends = min(self.low, self.value), max(self.high, self.value)
        span = math.log(ends[1] / ends[0]) or 1.0

        def at(value: float) -> int:
            return round(math.log(value / ends[0]) / span * (WIDTH - 1))

        cells = [" "] * WIDTH
        for i in range(at(self.low), at(self.high) + 1):
            cells[i] = "─"
        for i in range(at(self.usual[0]), at(self.usual[1]) + 1):
            cells[i] = "━"
        cells[at(self.value)] = "●"
        return "".join(cells)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        named = {name: getattr(self, name) for name in ("key", "name", "rule", "value", "low", "high")}
        usual = {"usual_low": self.usual[0], "usual_high": self.usual[1], "n_published": len(self.published)}
        return {**named, **usual, "breakers": [{"preset": name, "value": v} for name, v in self.outliers.items()]}


def field_comparison(model: Architecture) -> tuple[FieldPosition, ...]:
    """The proportions that a model has; for those it lacks, such as heads without attention, there is none."""
    spec = specification(model)
    found = ((ratio, ratio.of(spec)) for ratio in RATIOS)
    places = (FieldPosition(r.key, r.name, r.rule, value, survey()[r.key]) for r, value in found if value)
    return tuple(place for place in places if place.published)


@cache
def survey() -> Mapping[str, Mapping[str, float]]:
    """Each proportion of every preset that has it, ascending."""
    found = {r.key: [(v, name) for name, preset in PRESETS.items() if (v := r.of(preset.spec))] for r in RATIOS}
    return {key: {name: value for value, name in sorted(values)} for key, values in found.items()}


def _of_mixers(spec: ModelSpec) -> Iterator[Any]:
    for layers in distinct_layers(spec.stack):
        yield from mixers(layers.block)


def _feed_forward(kind: type[FeedForwardSpec] | type[GatedFeedForwardSpec]) -> Callable[[ModelSpec], float | None]:
    def ratio(spec: ModelSpec) -> float | None:
        return next((m.d_ff / spec.stack.d_model for m in _of_mixers(spec) if isinstance(m, kind)), None)

    return ratio


def _experts(spec: ModelSpec) -> float | None:
    for mixer in _of_mixers(spec):
        if isinstance(mixer, MoESpec) and hasattr(mixer.expert, "d_ff"):
            shared = getattr(mixer.shared_expert, "d_ff", 0)
            return (mixer.router.top_k * mixer.expert.d_ff + shared) / spec.stack.d_model  # type: ignore[attr-defined]
    return None


def _chosen(spec: ModelSpec) -> float | None:
    routers = (mixer.router for mixer in _of_mixers(spec) if isinstance(mixer, MoESpec))
    return next((router.top_k / router.n_experts for router in routers), None)


def _sizes(spec: ModelSpec) -> tuple[int, int, int] | None:
    return next((attention.sizes for attention in attentions(spec) if attention.stack != "encoder"), None)


def _all_heads(spec: ModelSpec) -> float | None:
    sizes = _sizes(spec)
    return sizes and sizes[0] * sizes[1] / spec.stack.d_model


def _head_dim(spec: ModelSpec) -> float | None:
    sizes = _sizes(spec)
    return sizes and sizes[1]


def _sharing(spec: ModelSpec) -> float | None:
    projections = (a.spec.projection for a in attentions(spec) if a.stack != "encoder")
    return next((p.n_heads / p.kv_heads for p in projections if hasattr(p, "kv_heads")), None)  # type: ignore[attr-defined]


def _theta(spec: ModelSpec) -> float | None:
    found = [r.theta for a in attentions(spec) if (r := getattr(a.spec.projection, "rotary", None)) is not None]
    return max(found) / spec.context if found and spec.context else None


RATIOS = (
    Ratio("d_ff_per_d_model", "d_ff / d_model", "4", _feed_forward(FeedForwardSpec)),
    Ratio("gated_d_ff_per_d_model", "d_ff / d_model, gated", "8/3", _feed_forward(GatedFeedForwardSpec)),
    Ratio("active_d_ff_per_d_model", "experts' d_ff a token / d_model", "", _experts),
    Ratio("active_experts_share", "experts a token / experts", "", _chosen),
    Ratio("heads_per_d_model", "heads · head_dim / d_model", "1", _all_heads),
    Ratio("head_dim", "head_dim", "64 or 128", _head_dim),
    Ratio("heads_per_kv_head", "heads / key/value heads", "1, 4 or 8", _sharing),
    Ratio("d_model_per_layer", "d_model / layers", "", lambda spec: spec.stack.d_model / spec.n_layers),
    Ratio("vocab_size", "vocabulary", "", lambda spec: spec.vocab_size),
    Ratio("theta_per_token", "RoPE theta / sequence length", "", _theta),
)


def _quantile(values: list[float], share: float) -> float:
    """The nearest published value, so that what is shown is one that exists."""
    return values[round(share * (len(values) - 1))]


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
