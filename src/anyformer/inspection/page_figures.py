"""The figures of layers and heads as the page of an inspection shows them: bars by layer, grids of heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import copysign, floor, isfinite, log10, sqrt
from typing import Any, NamedTuple

from anyformer.amounts import signed
from anyformer.inspection.results import HeadFigures, LayerFigures, Map, PartsFigures


class HeadMeasure(NamedTuple):
    """What the grid of heads is coloured by."""

    name: str  # the field of HeadFigures
    label: str
    words: str
    share: bool = True  # of one; others are seen beside the largest that was found
    digits: int = 2


MEASURES = (
    HeadMeasure(
        "importance", "importance", "How much the head matters, by the gradient, in {unit}.", share=False, digits=4
    ),
    HeadMeasure("previous", "token before", "The share of its weights that is on the token before."),
    HeadMeasure("first", "first token", "The share of its weights that is on the first token of the text."),
    HeadMeasure("itself", "itself", "The share of its weights that is on the token that reads."),
    HeadMeasure(
        "induction", "induction", "In random tokens said twice, the share on the one that came next the last time."
    ),
    HeadMeasure("distance", "distance", "How far back it looks, the mean in tokens.", share=False),
    HeadMeasure("entropy", "spread", "The entropy of its weights: 0 looks at one token, 1 at all alike."),
)


class FigureBar(NamedTuple):
    """A figure, and its bar in percent of the column's width."""

    text: str
    start: float = 0.0
    width: float | None = None  # None: nothing is known
    below: bool = False  # zero


@dataclass(frozen=True)
class FigureScale:
    """From the least to the largest of some figures, and zero."""

    low: float
    high: float
    bend: Callable[[float], float]

    @classmethod
    def of(cls, values: Iterable[float | None], bend: Callable[[float], float] = float) -> FigureScale:
        bent = [bend(value) for value in values if value is not None and isfinite(value)]
        return cls(min([0.0, *bent]), max([0.0, *bent]), bend)

    def at(self, value: float) -> float:
        return 100 * (self.bend(value) - self.low) / (self.high - self.low) if self.high > self.low else 0.0

    def bar(self, value: float | None, text: Callable[[float], str]) -> FigureBar:
        if value is None or not isfinite(value):
            return FigureBar("" if value is None else "–")
        start, end = sorted((self.at(0.0), self.at(value)))
        return FigureBar(text(value), round(start, 2), round(end - start, 2), value < 0)


def figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or not isfinite(value) else f"{value:z,.{digits}f}".replace("-", "−")


def known(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else value


def _root(value: float) -> float:
    return copysign(sqrt(abs(value)), value)


def named(head: HeadFigures) -> str:
    return f"head {head.head} of {head.stack} layer {head.layer}".replace("  ", " ")


def layer_tables(layers: Sequence[LayerFigures]) -> list[dict[str, Any]]:
    """A table a stack: a column for each kind of branch that occurs, counted where a layer has several of one kind."""
    ends, turns = FigureScale.of(each.ended for each in layers), FigureScale.of(each.turned for each in layers)
    every = [cost for each in layers for cost in (each.without, *(branch.without for branch in each.branches))]
    costs, tables = FigureScale.of(every, _root), []
    for stack, group in groupby(layers, lambda each: each.stack):
        rows = [(each, _by_kind(each)) for each in group]
        kinds = list(dict.fromkeys(kind for _, branches in rows for kind in branches))
        last = next((each.ended for each, _ in reversed(rows) if known(each.ended) is not None), None)
        tables.append({
            "stack": stack, "kinds": kinds, "ends": last is not None, "at": None if last is None else round(ends.at(last), 2),
            "zero": round(costs.at(0.0), 2) if costs.low < 0 else None,
            "rows": [{
                "layer": each.layer, "ended": ends.bar(each.ended, figure),
                "costs": [costs.bar(cost, signed) for cost in (each.without, *map(branches.get, kinds))],
                "turned": turns.bar(each.turned, figure),
            } for each, branches in rows],
        })  # fmt: skip
    return tables


def _by_kind(layer: LayerFigures) -> dict[str, float]:
    seen, costs = Counter[str](), dict[str, float]()
    for branch in layer.branches:
        seen[branch.kind] += 1
        costs[branch.kind if seen[branch.kind] == 1 else f"{branch.kind} {seen[branch.kind]}"] = branch.without
    return costs


def rows_of(heads: Sequence[HeadFigures]) -> list[list[tuple[int, HeadFigures]]]:
    """The heads with their numbers, those of one branch a list: a layer may have several of one kind, one behind the other."""
    rows: list[list[tuple[int, HeadFigures]]] = []
    for i, head in enumerate(heads):
        before = rows[-1][-1][1] if rows else None
        if before is None or place_of(before) != place_of(head) or before.head >= head.head:
            rows.append([])
        rows[-1].append((i, head))
    return rows


def place_of(at: HeadFigures | Map) -> tuple[str, int, str]:
    return at.stack, at.layer, at.kind


def head_grids(heads: Sequence[HeadFigures], measures: Sequence[HeadMeasure]) -> list[dict[str, Any]]:
    """A grid for each stack and kind; in a row the cells of its heads by their numbers, None where it has none of that."""
    grids: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(heads):
        cells: list[dict[str, Any] | None] = [None] * (row[-1][1].head + 1)
        for i, head in row:
            told = [f"{each.label} {figure(getattr(head, each.name), each.digits)}" for each in measures]
            cells[head.head] = {"i": i, "tip": "\n".join([named(head), *told])}
        first = row[0][1]
        grids.setdefault(f"{first.stack} {first.kind}".strip(), []).append({"layer": first.layer, "cells": cells})
    return [
        {"name": name, "rows": rows, "width": max(len(each["cells"]) for each in rows)} for name, rows in grids.items()
    ]


def neuron_tables(parts: Sequence[PartsFigures]) -> list[dict[str, Any]]:
    """A table a stack: of each map how many neurons there are, and which share has half and 90 % of what all matter."""
    whole, neurons = FigureScale.of([1.0]), (each for each in parts if each.parts == "neurons")
    return [{
        "stack": stack,
        "rows": [{
            "layer": each.layer, "kind": each.kind, "n": len(each.importance),
            "shares": [whole.bar(each.share_with(share), "{:.0%}".format) for share in (0.5, 0.9)],
        } for each in group],
    } for stack, group in groupby(neurons, lambda each: each.stack)]  # fmt: skip


def expert_grids(parts: Sequence[PartsFigures]) -> list[dict[str, Any]]:
    """A grid a stack and kind, a cell for each expert, as dark as it matters beside the one of all that matters most."""
    experts = [(each, each.importance.tolist()) for each in parts if each.parts == "experts"]
    most = max((value for _, values in experts for value in values if isfinite(value)), default=0.0)
    digits = min(9, max(2, 1 - floor(log10(most)))) if most else 2
    grids: dict[str, list[dict[str, Any]]] = {}
    for each, values in experts:
        place = f"{each.stack} layer {each.layer}".strip()
        cells = [{
            "text": (text := figure(value, digits)), "level": round((known(value) or 0.0) / most, 3) if most else 0.0,
            "tip": f"expert {i} of {place}\nimportance {text}",
        } for i, value in enumerate(values)]  # fmt: skip
        grids.setdefault(f"{each.stack} {each.kind}".strip(), []).append({"layer": each.layer, "cells": cells})
    return [
        {"name": name, "rows": rows, "width": max(len(row["cells"]) for row in rows), "most": figure(most, digits)}
        for name, rows in grids.items()
    ]
