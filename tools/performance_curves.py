"""Draws docs/performance.svg from benchmarks/results: time and memory by length, memory by depth, time by experts.

`python tools/performance.py` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

EXPERTS = "experts, top 2"
MARKS = "osv^D<>pP*Xd"
# No date and no random name in the file, so that the same results give the same picture; text stays text.
mpl.rcParams["svg.hashsalt"] = "anyformer"
mpl.rcParams["svg.fonttype"] = "none"


def draw(curves: Mapping[str, Any], depth: Mapping[str, Any], path: Path) -> None:
    """Write the picture of what `benchmarks.curves` and `benchmarks.depth` recorded."""
    figure = Figure(figsize=(12, 9), layout="constrained")
    (time, memory), (by_depth, experts) = figure.subplots(2, 2)
    rows = {row["curve"]: row for row in curves["rows"]}
    for mark, (name, row) in zip(MARKS, ((n, r) for n, r in rows.items() if n != EXPERTS), strict=False):
        _line(time, row["seconds"], mark, name)
        _line(memory, row["nbytes"], mark, name, unit=2**20)
    _titled(time, "time of both passes, CPU seconds", "tokens")
    _titled(memory, "memory that both passes add, MiB", "tokens")
    time.legend(fontsize="small")
    (found,) = depth["rows"]
    for mark, (name, nbytes) in zip(MARKS, found["nbytes"].items(), strict=False):
        _line(by_depth, nbytes, mark, name, unit=2**20)
    _titled(by_depth, "memory of a step, MiB", "layers", sizes="linear", values="linear")
    by_depth.legend()
    _line(experts, rows[EXPERTS]["seconds"], "o", EXPERTS)
    goes = "experts, of which each token goes to two"
    _titled(experts, "time of a mixture's both passes, CPU seconds", goes, values="linear")
    figure.savefig(path, format="svg", metadata={"Date": None})


def _line(axes: Axes, points: Mapping[str, float], mark: str, name: str, unit: float = 1) -> None:
    axes.plot([int(n) for n in points], [y / unit for y in points.values()], marker=mark, markersize=4, label=name)


def _titled(axes: Axes, what: str, by: str, *, sizes: str = "log", values: str = "log") -> None:
    axes.set(title=what, xlabel=by, yscale=values)
    if sizes == "log":
        axes.set_xscale("log", base=2)
    if values == "linear":
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
