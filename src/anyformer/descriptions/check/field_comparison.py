"""Where an architecture's proportions stand among the published ones, which are read from the presets themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from anyformer.amounts import three_digits
from anyformer.descriptions.facts import every_attention
from anyformer.descriptions.grouping import distinct_layers
from anyformer.descriptions.words import number
from anyformer.families import PRESETS
from anyformer.layers import FeedForwardSpec, GatedFeedForwardSpec, MoESpec
from anyformer.spec import Architecture, ModelSpec, Spec, specification

USUAL = (0.1, 0.9)  # the share of published models below and above what is usual
FENCE = 1.5  # interquartile ranges beyond the quartiles, of logarithms: what lies further breaks the rule (Tukey 1977)
WIDTH = 28  # characters of a strip

Read = Callable[[ModelSpec], float | None]  # None where it does not apply


class Ratio(NamedTuple):
    """A proportion that the field has a habit about."""

    key: str
    name: str
    rule: str  # the habit, in a few words
    of: Read


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
        return min(self.published.values())

    @property
    def high(self) -> float:
        return max(self.published.values())

    @property
    def usual(self) -> tuple[float, float]:
        """Between which four of five published models lie."""
        values = list(self.published.values())
        return _quantile(values, USUAL[0]), _quantile(values, USUAL[1])

    @property
    def beyond(self) -> bool:
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
        """A value as it is read."""
        return number(value) if float(value).is_integer() else three_digits(value)

    @property
    def strip(self) -> str:
        """The published range on a logarithmic scale: ━ where most are, ● where this one is."""
        ends = min(self.low, self.value), max(self.high, self.value)
        span = math.log(ends[1] / ends[0]) or 1.0

        def at(value: float) -> int:
            return round(math.log(value / ends[0]) / span * (WIDTH - 1))

        cells = [" "] * WIDTH
        for mark, low, high in (("─", self.low, self.high), ("━", *self.usual), ("●", self.value, self.value)):
            cells[at(low) : at(high) + 1] = mark * (at(high) + 1 - at(low))
        return "".join(cells)

    def as_json(self) -> dict[str, Any]:
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


def _first(kind: type[Spec], read: Callable[[Any, int], float | None]) -> Read:
    """What is read, beside d_model, of the first mixer of a kind in the decoder, or the only stack."""

    def ratio(spec: ModelSpec) -> float | None:
        found = (mixer for layers in distinct_layers(spec.stack) for mixer in layers.block.mixers)
        read_of = (read(mixer, spec.stack.d_model) for mixer in found if isinstance(mixer, kind))
        return next((value for value in read_of if value is not None), None)

    return ratio


def _active_d_ff(mixture: Any, d_model: int) -> float | None:
    one = getattr(mixture.expert, "d_ff", None)
    n_active = mixture.router.n_used + mixture.router.n_shared
    return one and (n_active * one + getattr(mixture.shared_expert, "d_ff", 0)) / d_model


def _active_share(mixture: Any, d_model: int) -> float:
    return mixture.router.n_used / mixture.router.n_experts


def _of_heads(read: Callable[[int, int, int], float]) -> Read:
    """What is read of the first attention's number of heads, width of a query, and d_model."""

    def ratio(spec: ModelSpec) -> float | None:
        sizes = next((attention.sizes for attention in every_attention(spec) if attention.stack != "encoder"), None)
        return sizes and read(*sizes[:2], spec.stack.d_model)

    return ratio


def _sharing(spec: ModelSpec) -> float | None:
    projections = (a.spec.projection for a in every_attention(spec) if a.stack != "encoder")
    return next((p.n_heads / p.kv_heads for p in projections if hasattr(p, "kv_heads")), None)  # type: ignore[attr-defined]


def _theta(spec: ModelSpec) -> float | None:
    found = [r.theta for a in every_attention(spec) if (r := getattr(a.spec.projection, "rotary", None)) is not None]
    return max(found) / spec.context if found and spec.context else None


RATIOS = (
    Ratio("d_ff_per_d_model", "d_ff / d_model", "4", _first(FeedForwardSpec, lambda m, d: m.d_ff / d)),
    Ratio(
        "gated_d_ff_per_d_model", "d_ff / d_model, gated", "8/3", _first(GatedFeedForwardSpec, lambda m, d: m.d_ff / d)
    ),
    Ratio("active_d_ff_per_d_model", "experts' d_ff a token / d_model", "", _first(MoESpec, _active_d_ff)),
    Ratio("active_experts_share", "experts a token / experts", "", _first(MoESpec, _active_share)),
    Ratio("heads_per_d_model", "heads · head_dim / d_model", "1", _of_heads(lambda n, width, d: n * width / d)),
    Ratio("head_dim", "head_dim", "64 or 128", _of_heads(lambda n, width, d: width)),
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
