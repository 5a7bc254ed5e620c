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
    "training", "peers", "classes", "moe", "generation", "decoding", "conversation", "blocked", "states", "depth",
    "tokenising", "scaling", "saving", "starting", "curves", "gpu", "gpu_kernels",
)  # fmt: skip

HEAD = """# Performance

What the benchmarks found when they last ran, each row beside its bar, and a column for each processor on which they ran: machines
differ, so a figure is a ratio of two sides that took turns in one run, on one thread, by CPU seconds; where seconds stand alone
the row says so. Written by `python tools/performance.py` from the files in [`benchmarks/results`](../benchmarks/README.md), which
hold every turn. A bar that was missed stays here as missed. On 2026-11-25, while
`decoding` and `blocked` ran on 2026-11-27, and while `conversation` ran, another core had other work; on 2026-12-01 it had a
little. `gpu` and `gpu_kernels` ran on a GPU, by its own clock.
"""

PICTURE = """
![Time and memory of both passes by length for every kernel and recurrence; memory by depth, plain and reversible; time of a
mixture by its number of experts](performance.svg)
"""


def about(name: str) -> str:
    """What a benchmark says of itself: the first paragraph of its text."""
    text = ast.get_docstring(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def section(name: str, runs: list[dict[str, Any]]) -> str:
    """What a benchmark is, how each of its runs was made, and a column of rows for each."""
    made = "".join(f"\n{provenance(run)}\n" for run in runs)
    found = [{row["name"]: row for row in run["rows"]} for run in runs]
    bars = {name: row["bar"] for rows in found for name, row in rows.items()}
    rows = "".join(
        f"| {name} | {bar} | {' | '.join(shown(rows.get(name)) for rows in found)} |\n" for name, bar in bars.items()
    )
    processors = " | ".join(run["machine"]["processor"] for run in runs)
    return f"\n## {name}\n\n{about(name)}\n{made}\n| what | bar | {processors} |\n|---|---|{'---|' * len(runs)}\n{rows}"


def shown(row: dict[str, Any] | None) -> str:
    """A cell: what was measured, and whether that misses the row's bar."""
    return "" if row is None else f"{row['value']:.3g}{'' if row['passed'] else ', missed'}"


def provenance(run: dict[str, Any]) -> str:
    """The command, day, machine and versions of a run."""
    machine, versions = run["machine"], run["versions"]
    where = f"{machine['processor']}, bfloat16 {machine['bfloat16'].partition(':')[0]}"
    which = f"torch {versions['torch']}, transformers {versions['transformers']}, Python {versions['python']}"
    note = f" Note: {run['note']}." if "note" in run else ""
    return f"`{run['command']}`, {run['date'][:10]}, {where}; {which}.{note}"


def results() -> dict[str, list[Any]]:
    """What each benchmark recorded last, of those that were run, and after it what it recorded on another processor."""
    found = {name: [RESULTS / f"{name}.json", *sorted(RESULTS.glob(f"*/{name}.json"))] for name in BENCHMARKS}
    return {
        name: [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        for name, paths in found.items()
        if paths[0].exists()
    }


def page() -> str:
    """Return the page of the results that there are."""
    return HEAD + (PICTURE if DRAWN.exists() else "") + "".join(section(name, runs) for name, runs in results().items())


if __name__ == "__main__":
    from performance_curves import draw

    found = results()
    if {"curves", "depth"} <= found.keys():
        draw(found["curves"][0], found["depth"][0], DRAWN)
    PAGE.write_text(page(), encoding="utf-8")
