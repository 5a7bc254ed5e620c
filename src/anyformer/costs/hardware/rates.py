"""Measured rates of one machine: tables of times by size, and what lies between their rows (linear in logarithms)."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from anyformer.costs.hardware.operators import Operator

Pass = Literal["forward", "training"]
Curve = tuple[tuple[float, float], ...]  # (size, value), sizes ascending
VERSION = 1  # of the file that keeps them


@dataclass(frozen=True)
class Grid:
    """Values at every combination of three sizes."""

    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    values: tuple[float, ...]  # k fastest, then n

    def at(self, m: float, n: float, k: float) -> float:
        """The value for sizes between those of the grid; beyond its ends, that of the end."""
        corners = [_between(axis, size) for axis, size in ((self.m, m), (self.n, n), (self.k, k))]
        total = 0.0
        for i, wi in corners[0]:
            for j, wj in corners[1]:
                for h, wh in corners[2]:
                    value = self.values[(i * len(self.n) + j) * len(self.k) + h]
                    total += wi * wj * wh * math.log(value)
        return math.exp(total)


@dataclass(frozen=True)
class Rates:
    """Seconds, per FLOP or per number, in the forward pass alone and in forward and backward passes together."""

    products: Mapping[str, Grid]  # by dtype: seconds a FLOP of [m, k] · [k, n]
    attention: Mapping[str, Mapping[str, Mapping[str, Curve]]]  # dtype, pass, width of a head: tokens → seconds a FLOP
    maps: Mapping[str, Mapping[str, Curve]]  # name, pass: features → seconds a feature
    reading: Curve  # bytes in turn → bytes a second of reading them
    copying: Curve  # bytes of the source → bytes a second read and written
    update_seconds: float  # a parameter: gradient's norm, AdamW, gradient set to zero
    one_query: Curve  # cached tokens of a row → seconds a number of the cache, of attention with one query a row
    overhead_seconds: Mapping[str, float]  # by pass, an operator
    pass_seconds: Mapping[str, float]  # by pass, what a pass takes besides
    asynchronous: bool  # launches run beside the work

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Rates:
        """The rates that `as_json` gave. Raises KeyError, TypeError or ValueError for what it did not."""
        return Rates(
            products={
                dtype: Grid(*(tuple(grid[name]) for name in ("m", "n", "k", "values")))
                for dtype, grid in data["products"].items()
            },
            attention={
                dtype: {p: {w: _curve(c) for w, c in widths.items()} for p, widths in passes.items()}
                for dtype, passes in data["attention"].items()
            },
            maps={name: {p: _curve(c) for p, c in passes.items()} for name, passes in data["maps"].items()},
            reading=_curve(data["reading"]),
            copying=_curve(data["copying"]),
            update_seconds=float(data["update_seconds"]),
            one_query=_curve(data["one_query"]),
            overhead_seconds={p: float(s) for p, s in data["overhead_seconds"].items()},
            pass_seconds={p: float(s) for p, s in data["pass_seconds"].items()},
            asynchronous=bool(data["asynchronous"]),
        )

    def knows(self, dtype: str) -> bool:
        """Whether products of a dtype were measured."""
        return dtype in self.products

    def work_seconds(self, operator: Operator, dtype: str, passes: Pass) -> float:
        """The seconds of an operator's arithmetic, its data at hand."""
        o = operator
        if o.kind == "attention":
            if o.name == "causal" and o.shape is not None and o.shape[0] > 1:
                widths = self.attention[dtype][passes]
                wanted = max(1, o.shape[2])
                width = min(widths, key=lambda w: abs(math.log(int(w) / wanted)))
                return o.flops * on_curve(widths[width], o.shape[0])
            if o.shape is not None and o.cache:
                return o.cache * on_curve(self.one_query, o.shape[1])
            return o.flops * (1 if passes == "forward" else 3) * self.products[dtype].at(*(o.shape or (1, 64, 64)))
        if o.kind == "contraction":
            shape = o.shape or (1024, 1024, 1024)
            m, n, k = shape
            each = self.products[dtype].at(*shape)
            if passes == "training":  # and the gradients of what came in and of the weights
                each += self.products[dtype].at(m, k, n) + self.products[dtype].at(n, k, m)
            seconds = o.flops * each
            if o.part == "logits" and passes == "training":
                seconds += self._map("loss", passes, o.features)
            return seconds
        return self._map(o.name, passes, o.features)

    def _map(self, name: str, passes: Pass, features: int) -> float:
        if features == 0:
            return 0.0
        known = self.maps.get(name) or self.maps.get(name.split(" ")[0])
        if known is None:
            known = self.maps["SiLU gated" if name.endswith("gated") else "SiLU"]
        return features * on_curve(known[passes], features)


def on_curve(curve: Sequence[tuple[float, float]], size: float) -> float:
    """The value at a size between two rows, in logarithms; beyond the ends, that of the end."""
    at = _between([row[0] for row in curve], size)
    return math.exp(sum(weight * math.log(curve[i][1]) for i, weight in at))


def _between(axis: Sequence[float], size: float) -> list[tuple[int, float]]:
    if size <= axis[0]:
        return [(0, 1.0)]
    if size >= axis[-1]:
        return [(len(axis) - 1, 1.0)]
    i = bisect.bisect_right(axis, size) - 1
    share = math.log(size / axis[i]) / math.log(axis[i + 1] / axis[i])
    return [(i, 1.0 - share), (i + 1, share)]


def _curve(rows: Any) -> Curve:
    curve = tuple((float(size), float(value)) for size, value in rows)
    if not curve or any(value <= 0 for _, value in curve):
        raise ValueError("a curve has no rows, or values that are no rates")
    return curve
