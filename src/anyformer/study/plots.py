"""Charts as geometry in pixels, drawn by the report's template as inline SVG: loss curves, and dots with intervals.

Drawn here and not by matplotlib, because colours that follow the reader's light or dark scheme, text that stays text
and read-outs under the pointer need SVG whose parts can be styled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from anyformer.amounts import prefixed, signed
from anyformer.study.curves import Axis, Curve, PlotLine, curves, thin
from anyformer.study.paired import Interval
from anyformer.study.results import Study
from anyformer.study.statistics import Analysis

Drawing = dict[str, Any]  # what the template draws, by the names that it has there
N_COLOURS = 8
LABEL_HEIGHT = 17.0
UNITS: dict[Axis, str] = {"tokens": "training tokens", "flops": "training FLOPs", "seconds": "seconds of training"}


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Scale:
    """Maps values `low`…`high` to pixels `start`…`end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, n: int, shown: Callable[[float, int], str]) -> tuple[Tick, ...]:
        """About `n` ticks; `shown` writes a value with the decimals that keep neighbours apart."""
        values = nice_values(self.low, self.high, n)
        decimals = max(0, -math.floor(math.log10(values[1] - values[0]) + 1e-9)) if len(values) > 1 else 3
        return tuple(Tick(round(self(value), 1), shown(value, decimals)) for value in values)


def nice_values(low: float, high: float, n: int) -> list[float]:
    """About `n` round values (steps of 1, 2 or 5 times a power of ten) within `low`…`high`."""
    if not high > low:
        return [low]
    rough = (high - low) / n
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def loss_chart(study: Study, axis: Axis, *, width: int, height: int, label_width: int = 144) -> Drawing | None:
    """The training losses over `axis`, or None if no run has a reading."""
    drawn = [(colour, curve, curve.main) for colour, curve in enumerate(curves(study, axis)) if curve.main is not None]
    if not drawn:
        return None
    mains = [main for _, _, main in drawn]
    divisor, unit = _unit(axis, max(float(main.x[-1]) for main in mains), study.counted)
    low, high = _loss_range(mains, study.baselines[0].loss if study.baselines else None)
    last = max(float(line.x[-1]) for _, curve, main in drawn for line in (main, *curve.faint)) or 1.0
    x, y = Scale(0.0, last, 46.0, width - float(label_width)), Scale(low, high, height - 44.0, 14.0)
    return {
        "width": width,
        "height": height,
        "x": x,
        "y": y,
        "unit": unit,
        "x_ticks": Scale(0.0, last / divisor, x.start, x.end).ticks(max(4, width // 130), _tick_text),
        "y_ticks": y.ticks(6, _plain),
        "series": _spread([_series(colour, curve, main, x, y) for colour, curve, main in drawn], y),
        "baselines": [
            Tick(round(y(one.loss), 1), f"{one.name} {one.loss:.2f}")
            for one in {one.name: one for one in study.baselines}.values()
            if low < one.loss < high
        ],
        "data": _read_out(drawn, x, y, divisor, unit),  # under the pointer
    }


def score_chart(study: Study, analysis: Analysis, *, width: int) -> Drawing | None:
    """The score of each architecture with its interval, and a small dot a run where there are several."""
    scores = [(finding.architecture, finding.score) for finding in analysis.findings]
    runs = {name: [run.scored(study.judged) for run in study.of(name) if run.finished] for name, _ in scores}
    known = {name: [value for value in of if value is not None] for name, of in runs.items()}
    return _dot_chart(study, scores, known, width, _plain)


def difference_chart(study: Study, analysis: Analysis, *, width: int) -> Drawing | None:
    """The differences in score to the first architecture, with their intervals and a line at zero."""
    differences = [(finding.architecture, finding.difference) for finding in analysis.findings]
    return _dot_chart(study, differences, {}, width, signed, zero=True)


def _dot_chart(
    study: Study, rows: list[tuple[str, Interval | None]], runs: dict[str, list[float]], width: int,
    shown: Callable[[float, int], str],
    *, zero: bool = False,
) -> Drawing | None:  # fmt: skip
    known = [interval for _, interval in rows if interval is not None]
    if not known:
        return None
    values = [v for one in known for v in (one.value, one.low, one.high) if v is not None]
    values += [v for of in runs.values() for v in of] + ([0.0] if zero else [])
    pad = max(0.08 * (max(values) - min(values)), 0.002)
    height = 38 * len(rows) + 38
    x = Scale(min(values) - pad, max(values) + pad, 128.0, width - 20.0)
    dots = []
    for index, (name, interval) in enumerate(rows):
        dot = {"name": name, "colour": study.architectures.index(name) % N_COLOURS, "at": 30.0 + 38 * index}
        if interval is None:
            text = "the others are compared to it" if zero and index == 0 else "no finished run to show"
            dots.append({**dot, "value": None, "text": text})
            continue
        ends = {name: getattr(interval, name) for name in ("value", "low", "high")}
        of = runs.get(name, [])
        dot |= {name: None if end is None else round(x(end), 1) for name, end in ends.items()}
        small = [round(x(value), 1) for value in of] if len(of) > 1 else []
        dots.append({**dot, "runs": small, "text": shown(interval.value, 3)})
    at = x(0.0) if zero else None
    return {"width": width, "height": height, "x": x, "x_ticks": x.ticks(5, shown), "zero": at, "dots": dots}


def _unit(axis: Axis, last: float, counted: str) -> tuple[float, str]:
    if axis != "seconds":
        return 1.0, UNITS[axis].replace("token", counted)
    if last > 7200:
        return 3600.0, "hours of training"
    return (60.0, "minutes of training") if last > 180 else (1.0, UNITS[axis])


def _plain(value: float, decimals: int) -> str:
    return f"{value:.{max(decimals, 1)}f}"


def _tick_text(value: float, decimals: int) -> str:
    return prefixed(value) if value >= 1000 else f"{value:.{decimals}f}"


def _loss_range(lines: list[PlotLine], floor: float | None) -> tuple[float, float]:
    lowest, highest = min(float(line.loss.min()) for line in lines), max(float(line.loss.max()) for line in lines)
    if floor is not None and lowest < floor:  # above what reads nothing nothing of interest happens, and it's steep
        highest = min(highest, floor + 0.12 * (floor - lowest))
    pad = max(0.05 * (highest - lowest), 0.02)  # a constant loss is a line in the middle, not noise enlarged
    return lowest - pad, highest + pad / 2


def _series(colour: int, curve: Curve, main: PlotLine, x: Scale, y: Scale) -> Drawing:
    """What is drawn of one architecture; `end` is where its line ends, and `label` the height of the words beside it."""
    end = (round(x(float(main.x[-1])), 1), round(_within(y(float(main.loss[-1])), y), 1))
    held = curve.validation
    dots = [] if held is None else [(x(a), y(b)) for a, b in zip(held.x.tolist(), held.loss.tolist(), strict=True)]
    return {
        "name": curve.architecture,
        "colour": colour % N_COLOURS,
        "path": _path(main, x, y),
        "faint": [_path(line, x, y) for line in curve.faint],
        "dots": [(round(a, 1), round(b, 1)) for a, b in dots if b > y.end],
        "broken": [(round(x(a), 1), round(_within(y(b), y), 1)) for a, b in curve.broken],
        "finished": curve.finished,
        "value": f"{float(main.loss[-1]):.2f}" if curve.finished else "failed",
        "end": end,
        "label": end[1],
    }


def _spread(series: list[Drawing], y: Scale) -> list[Drawing]:
    """Move labels apart, downwards from the top one and then back up from the axis, where they would overlap."""
    order = sorted(series, key=lambda one: one["end"][1])
    for above, one in pairwise(order):
        one["label"] = max(one["label"], above["label"] + LABEL_HEIGHT)
    limit = y.start
    for one in reversed(order):
        limit = min(one["label"], limit)
        one["label"] = round(limit, 1)
        limit -= LABEL_HEIGHT
    return series


def _within(height: float, y: Scale) -> float:
    return min(max(height, y.end), y.start)


def _path(line: PlotLine, x: Scale, y: Scale) -> str:
    points = zip(line.x.tolist(), line.loss.tolist(), strict=True)
    return "M" + "L".join(f"{x(a):.1f},{max(y(b), -99.0):.1f}" for a, b in points)


def _read_out(drawn: list[tuple[int, Curve, PlotLine]], x: Scale, y: Scale, divisor: float, unit: str) -> Drawing:
    series = []
    for colour, curve, main in drawn:
        line = thin(main, 130)
        xs, losses = [float(f"{v:.4g}") for v in line.x], [round(float(v), 3) for v in line.loss]
        series.append({"name": curve.architecture, "colour": colour % N_COLOURS, "x": xs, "loss": losses})
    scales = [[s.low, s.high, s.start, s.end] for s in (x, y)]
    return {"x": scales[0], "y": scales[1], "divisor": divisor, "unit": unit, "series": series}
