"""The lines of the loss charts: smoothed, averaged over seeds, thinned to what a screen can show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyformer.study.results import LossPoint, RunResult, Study

Axis = Literal["tokens", "flops", "seconds"]
Array = NDArray[np.float64]
N_SHOWN = 260  # points of a line; a chart is about a thousand pixels wide
SMOOTHING = 0.02  # standard deviation of the Gaussian, as a share of the readings


@dataclass(frozen=True, eq=False)
class PlotLine:
    """Losses over x, in the units of the axis."""

    x: Array
    loss: Array


@dataclass(frozen=True, eq=False)
class Curve:
    """One architecture's lines along one axis; `main` is None if it has no reading at all."""

    architecture: str
    main: PlotLine | None
    faint: tuple[PlotLine, ...]  # one seed: the raw readings; several: each seed, smoothed
    validation: PlotLine | None  # the mean over finished runs
    broken: tuple[tuple[float, float], ...]  # where a failed run stopped
    finished: bool


def curves(study: Study, axis: Axis) -> tuple[Curve, ...]:
    """The lines of every architecture of `study`, in its order."""
    return tuple(_curve(architecture, study.of(architecture), axis) for architecture in study.architectures)


def smooth(loss: Array) -> Array:
    """`loss` under a Gaussian window that shrinks towards both ends, so that no end is biased."""
    n = len(loss)
    width = max(1.0, n * SMOOTHING)
    at = np.arange(n)
    result = np.empty(n)
    for here in range(n):
        reach = min(math.ceil(3 * width), here, n - 1 - here)  # symmetric, so a steep line is not pulled to one side
        window = slice(here - reach, here + reach + 1)
        weights = np.exp(-0.5 * ((at[window] - here) / width) ** 2)
        result[here] = float(weights @ loss[window] / weights.sum())
    if n > 4:  # the last readings have hardly a window: end on a straight line through the smoothed part before them
        tail = min(n // 3, math.ceil(3 * width))
        slope, level = np.polyfit(at[n - 2 * tail :], loss[n - 2 * tail :], 1)
        fade = np.linspace(0.0, 1.0, tail)
        result[n - tail :] = (1 - fade) * result[n - tail :] + fade * (slope * at[n - tail :] + level)
    return result


def _curve(architecture: str, runs: Sequence[RunResult], axis: Axis) -> Curve:
    finished = [run for run in runs if run.finished]
    raw = {run.name: _line(run.curve, axis) for run in runs}
    smoothed = {name: PlotLine(line.x, smooth(line.loss)) for name, line in raw.items() if len(line.x)}
    leading = [smoothed[run.name] for run in finished or runs if run.name in smoothed]
    if not leading:
        main = None
    elif len(leading) == 1 or not finished:
        main = max(leading, key=lambda line: float(line.x[-1]))
    else:
        main = _mean(leading)
    single = len(runs) == 1
    faint = raw.values() if single else smoothed.values()
    readings = [line for run in finished if len((line := _line(run.validation, axis)).x)]
    validation = None
    if readings:
        validation = thin(readings[0] if len(readings) == 1 else _mean(readings, readings[0].x), 40)
    broken = [smoothed[run.name] for run in runs if not run.finished and run.name in smoothed]
    return Curve(
        architecture=architecture,
        main=None if main is None else thin(main, N_SHOWN),
        faint=tuple(thin(line, N_SHOWN if single else N_SHOWN // 2) for line in faint if len(line.x)),
        validation=validation,
        broken=tuple((float(line.x[-1]), float(line.loss[-1])) for line in broken),
        finished=bool(finished),
    )


def _line(points: Sequence[LossPoint], axis: Axis) -> PlotLine:
    readings = [(float(getattr(point, axis)), point.loss) for point in points if math.isfinite(point.loss)]
    table = np.asarray(readings, dtype=np.float64).reshape(-1, 2)
    return PlotLine(table[:, 0], table[:, 1])


def _mean(lines: Sequence[PlotLine], x: Array | None = None) -> PlotLine:
    """The mean loss at the places `x` (evenly spaced if None) that all `lines` reach."""
    low, high = max(line.x[0] for line in lines), min(line.x[-1] for line in lines)
    x = np.linspace(low, max(low, high), N_SHOWN) if x is None else x[(x >= low) & (x <= high)]
    return PlotLine(x, np.mean([np.interp(x, line.x, line.loss) for line in lines], axis=0))


def thin(line: PlotLine, n_shown: int) -> PlotLine:
    """At most `n_shown` points of a line, evenly spread."""
    if len(line.x) <= n_shown:
        return line
    kept = np.unique(np.linspace(0, len(line.x) - 1, n_shown).round().astype(int))
    return PlotLine(line.x[kept], line.loss[kept])
