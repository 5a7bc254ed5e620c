"""Writes docs/performance.md from benchmarks/results: `python tools/performance.py`."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
DRAWN = PAGE.with_suffix(".svg")
# Those whose rows have bars, in the page's order.
BENCHMARKS = (
    "training", "peers", "classes", "moe", "generation", "decoding", "blocked", "states", "depth", "tokenising",
    "scaling", "saving", "starting", "curves", "gpu", "gpu_kernels",
)  # fmt: skip

HEAD = """# Performance

What the benchmarks found when they last ran, each row beside its bar. Machines differ, so a figure is a ratio of two sides that
took turns in one run, on one thread, by CPU seconds; where seconds stand alone the row says so. Written by
`python tools/performance.py` from the files in [`benchmarks/results`](../benchmarks/README.md), which hold every turn. A bar that
was missed stays here as missed. Of those of 2026-11-25 another core had other work meanwhile. `gpu` and `gpu_kernels`
ran on a GPU, by its own clock.
"""

PICTURE = """
![Time and memory of both passes by length for every kernel and recurrence; memory by depth, plain and reversible; time of a
mixture by its number of experts](performance.svg)
"""


def about(name: str) -> str:
    """What a benchmark says of itself: the first paragraph of its text."""
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def section(name: str, found: dict[str, Any]) -> str:
    """A benchmark's machine, command and rows."""
    machine, versions = found["machine"], found["versions"]
    where = f"{machine['processor']}, bfloat16 {machine['bfloat16'].partition(':')[0]}"
    which = f"torch {versions['torch']}, transformers {versions['transformers']}, Python {versions['python']}"
    rows = "".join(
        f"| {row['name']} | {row['value']:.3g} | {row['bar']} | {'' if row['passed'] else 'missed'} |\n"
        for row in found["rows"]
    )
    note = f"\nNote: {found['note']}.\n" if "note" in found else ""
    return (
        f"\n## {name}\n\n{about(name)}\n\n`{found['command']}`, {found['date'][:10]}, {where}; {which}.\n{note}"
        f"\n| what | measured | bar | |\n|---|---|---|---|\n{rows}"
    )


def results() -> dict[str, Any]:
    """What each benchmark recorded last, of those that were run."""
    found = {name: RESULTS / f"{name}.json" for name in BENCHMARKS}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in found.items() if path.exists()}


def page() -> str:
    """Return the page of the results that there are."""
    return (
        HEAD
        + (PICTURE if DRAWN.exists() else "")
        + "".join(section(name, result) for name, result in results().items())
    )


if __name__ == "__main__":
    from performance_curves import draw

    found = results()
    if {"curves", "depth"} <= found.keys():
        draw(found["curves"], found["depth"], DRAWN)
    PAGE.write_text(page(), encoding="utf-8")
