"""Draws a picture beside each page of studies/results: losses by seed or by FLOPs; by window, or by learning rate.

`python -m tools.claims` calls it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anyformer.amounts import prefixed
from tools.claims import rows

MARKS = "osv^D<>pP*Xdh8"
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
LOSSES = "| model | parameters | tokens | lr | loss by seed"
WINDOWS = "| model | parameters | tokens | window |"
RATES = "Learning rates, chosen on"
# No random name in the file, so that the same page gives the same picture; text stays text.
STYLE: dict[Any, Any] = {"svg.hashsalt": "anyformer", "svg.fonttype": "none"}


@dataclass(frozen=True)
class Row:
    """A model's runs of one size and budget."""

    model: str
    n_params: str
    tokens: float
    flops: float
    losses: list[float]  # by seed


def draw(page: str) -> str:
    """The picture of a page of findings, as SVG."""
    losses = [
        Row(name, n, number(tokens), number(flops), [float(loss) for loss in seeds.split(", ") if "failed" not in loss])
        for name, n, tokens, _, seeds, _, flops, *_ in rows(page, LOSSES)
    ]
    windows = [(name, number(n), float(loss)) for name, _, _, n, loss, *_ in rows(page, WINDOWS)]
    models = list(dict.fromkeys(row.model for row in losses))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.4 + 0.16 * max(0, len(models) - 6)), layout="constrained")
        left, right = figure.subplots(1, 2)
        if len({row.tokens for row in losses}) > 1:
            _by_flops(left, models, losses)
        else:
            _by_seed(left, models, losses)
        if windows:
            _lines(right, models, windows)
            right.set(xlabel="length of window, tokens", title="nats a token by length of window, means over seeds")
        else:
            _lines(right, models, list(tried(page)))
            right.set(xlabel="learning rate", title="nats a token by learning rate, when it was chosen")
        for axes in (left, right):
            axes.grid(visible=True, alpha=0.3)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def tried(page: str) -> Iterator[tuple[str, float, float]]:
    """(model, learning rate, loss) of the runs that chose rates."""
    for line in page.partition(RATES)[2].splitlines():
        if line.startswith("- ") and "; chosen " in line:
            name, _, trials = line.removeprefix("- ").partition(": ")
            for trial in trials.partition("; chosen ")[0].split(", "):
                rate, loss = trial.split()
                if loss != "failed":
                    yield name, float(rate), float(loss)


def number(text: str) -> float:
    """What `1.25M`, `13.5 T`, `820` or `1,024` say; pages of before have FLOPs without the space."""
    digits = text.replace(",", "")
    return float(digits[:-1]) * UNITS[digits[-1]] if digits[-1] in UNITS else float(digits)


def _by_seed(axes: Axes, models: list[str], losses: list[Row]) -> None:
    for row in losses:
        at = models.index(row.model)
        axes.plot(row.losses, [at] * len(row.losses), "o", markersize=4, alpha=0.5, color=f"C{at % 10}")
        if row.losses:
            axes.plot([fmean(row.losses)], [at], "|", markersize=14, markeredgewidth=2, color=f"C{at % 10}")
    axes.set_yticks(range(len(models)), models)
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.set(title="nats a token, each seed and their mean", xlabel="nats a token")


def _by_flops(axes: Axes, models: list[str], losses: list[Row]) -> None:
    sizes = {name: list(dict.fromkeys(row.n_params for row in losses if row.model == name)) for name in models}
    for at, (mark, name) in enumerate(zip(MARKS, models, strict=False)):
        for size in sizes[name]:
            of = [row for row in losses if (row.model, row.n_params) == (name, size) and row.losses]
            for row in of:
                axes.plot([row.flops] * len(row.losses), row.losses, mark, markersize=3, alpha=0.4, color=f"C{at % 10}")
            label = name if size == sizes[name][0] else "_"  # the legend has a model once
            means = [fmean(row.losses) for row in of]
            axes.plot([row.flops for row in of], means, marker=mark, markersize=5, color=f"C{at % 10}", label=label)
    axes.set(title="nats a token, each seed and their means", xlabel="FLOPs", xscale="log")
    _ticks(axes, [row.flops for row in losses], prefixed)
    axes.legend(fontsize="small")


def _lines(axes: Axes, models: list[str], points: list[tuple[str, float, float]]) -> None:
    named = [name for name, *_ in points]  # a model, or one of its sizes
    for at, (mark, name) in enumerate(zip(MARKS, dict.fromkeys([*models, *named]), strict=False)):
        of = sorted((x, loss) for model, x, loss in points if model == name)
        if of:
            axes.plot(*zip(*of, strict=True), marker=mark, markersize=4, color=f"C{at % 10}", label=name)
    axes.set_xscale("log")
    _ticks(axes, [x for _, x, _ in points], lambda x: f"{x:,g}")
    outside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}  # of many, which would hide points
    axes.legend(fontsize="small", **(outside if len(models) > 10 else {}))


def _ticks(axes: Axes, values: list[float], said: Callable[[float], str]) -> None:
    """Ticks at the values themselves, where they are not so near that their words would touch."""
    kept: list[float] = []
    for value in sorted(set(values)):
        if not kept or value > 1.3 * kept[-1]:
            kept.append(value)
    axes.set_xticks(kept, [said(value) for value in kept])
    axes.minorticks_off()


def beside(page: Path) -> Path:
    """Where a page's picture lies."""
    return page.with_suffix(".svg")
