"""Writes the tables of docs/plan.md: `PYTHONPATH=src python -m tests.costs.plan_table` from the root of the repository."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import anyformer as af
from anyformer.costs.hardware.plan import Plan, hardware, plan
from tests.costs import published_runs

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"
T, B = 10**12, 10**9
# Model, hardware, sequence, tokens of a step, goal.
ASKED = (
    ("llama3-70b", "8xH100", 8192, 2**22, 15 * T),
    ("llama3-70b", "256xH100", 8192, 2**22, 15 * T),
    ("deepseek-v3", "8xH100", 4096, 15_360 * 4096, 14_800 * B),
    ("deepseek-v3", "256xH100", 4096, 15_360 * 4096, 14_800 * B),
)
# What papers ran: the same with their mesh, and what they print of it.
RAN = (
    ("llama3.1-405b", "8192xH100", 8192, 2**24, "tp=8,pp=16,dp=64", "430 TFLOP/s a GPU"),
    ("llama3.1-405b", "16384xH100", 8192, 2**24, "tp=8,pp=16,dp=128", "400 TFLOP/s a GPU"),
    ("llama3.1-405b", "16384xH100", 131_072, 2**24, "tp=8,pp=16,cp=16,dp=8", "380 TFLOP/s a GPU"),
    ("deepseek-v3", "2048xH800", 4096, 15_360 * 4096, "pp=16,ep=64,dp=128", "2.664 M GPU hours for 14.8 T tokens"),
)


def tables() -> str:
    """Return both tables in Markdown."""
    return "\n".join([*_asked(), "", *_ran()])


def written(page: str, names: Collection[str] = ("tables", "runs")) -> str:
    """Return the page with its tables made anew, or those of these names."""
    for name, make in (("tables", tables), ("runs", published_runs.tables)):
        if name in names:
            page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\1{make()}\n\2", page, flags=re.DOTALL)
    return page


def _asked() -> Iterator[str]:
    yield "| model, hardware | fits | mesh | micro-batch, recomputation | memory a device | of the peak | days to the goal |"
    yield "|---|---|---|---|---|---|---|"
    for model, on, seq_len, batch_tokens, tokens in ASKED:
        found = plan(af.preset(model), hardware(on), seq_len=seq_len, batch_tokens=batch_tokens, tokens=tokens)
        best, name = found.best, f"{model}, {found.hardware}, {seq_len:,} tokens"
        if best is None:
            yield f"| {name} | no: {found.reason} | nearest: {found.nearest} | | | | |"
            continue
        assert found.hours_needed is not None
        options = f"{best.micro_batch} × {seq_len:,}, {best.recompute}"
        days = f"{found.hours_needed / 24:,.0f} to {tokens / T:g} T tokens"
        yield f"| {name} | yes | {best.mesh} | {options} | {best.nbytes / 1e9:.1f} GB | {found.share_of_peak:.1%} | {days} |"


def _ran() -> Iterator[str]:
    yield "| model, hardware | mesh of the paper | printed | planned here | recomputation | memory a device |"
    yield "|---|---|---|---|---|---|"
    for model, on, seq_len, batch_tokens, mesh, printed in RAN:
        found = plan(
            af.preset(model), hardware(on), seq_len=seq_len, batch_tokens=batch_tokens, mesh=mesh, tokens=14_800 * B
        )
        best = found.best
        assert best is not None
        name = f"{model}, {found.hardware}, {seq_len:,} tokens"
        yield f"| {name} | {best.mesh} | {printed} | {_said(found, printed)} | {best.recompute} | {best.nbytes / 1e9:.1f} GB |"


def _said(found: Plan, printed: str) -> str:
    if "hours" in printed:
        return f"{found.as_json()['device_hours'] / 1e6:.3f} M GPU hours"
    flops = found.tokens_per_second * found.training_flops_per_token / found.hardware.devices
    return f"{flops / 1e12:.0f} TFLOP/s a GPU"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
