"""Measured rates of one machine: tables of times by size, and what lies between their rows (linear in logarithms)."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from anyformer.observation.operators import Operator

Timed = Literal["forward", "training"]  # a pass alone, or with its loss, its backward pass and the update
Curve = tuple[tuple[float, float], ...]  # (size, value), sizes ascending
VERSION = 2  # of the file that keeps them


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
        for (i, wi), (j, wj), (h, wh) in itertools.product(*corners):
            value = self.values[(i * len(self.n) + j) * len(self.k) + h]
            total += wi * wj * wh * math.log(value)
        return math.exp(total)


@dataclass(frozen=True)
class Rates:
    """Seconds, per FLOP or per byte, of what runs by itself."""

    products: Mapping[str, Grid]  # by dtype: seconds a FLOP of [m, k] · [k, n]
    attention: Mapping[str, Mapping[str, Mapping[str, Curve]]]  # dtype, phase, width of a head: tokens → seconds a FLOP
    others: Mapping[str, Curve]  # by PyTorch's name of what is no product: bytes read and written → seconds a byte
    reading: Curve  # bytes in turn → bytes a second of reading them
    copying: Curve  # bytes of the source → bytes a second read and written
    update_seconds: float  # a parameter: gradient's norm, AdamW, gradient set to zero
    one_query: Curve  # cached tokens of a row → seconds a byte of the cache, of attention with one query a row
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
                dtype: {p: {w: _curve(c) for w, c in widths.items()} for p, widths in phases.items()}
                for dtype, phases in data["attention"].items()
            },
            others={name: _curve(curve) for name, curve in data["others"].items()},
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

    def work_seconds(self, o: Operator, dtype: str) -> float:
        """The seconds of an operator's work, its data at hand."""
        if o.shape is None:
            fallback = {"normalisation": "_softmax", "movement": "clone"}.get(o.kind, "mul")
            nbytes = o.nbytes + o.weights
            return nbytes * on_curve(self.others.get(o.name) or self.others[fallback], nbytes) if nbytes else 0.0
        if o.kind == "contraction":
            return o.flops * self.products[dtype].at(*o.shape)
        queries, keys, wanted = o.shape
        if reads_a_cache(o):
            return o.nbytes * on_curve(self.one_query, keys)
        widths = self.attention[dtype][o.phase]
        width = min(widths, key=lambda w: abs(math.log(int(w) / wanted)))
        return o.flops * on_curve(widths[width], queries)


def reads_a_cache(o: Operator) -> bool:
    """Whether an attention has so few queries that reading its keys takes the time."""
    return o.kind == "attention" and o.shape is not None and 4 * o.shape[0] <= o.shape[1]


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
