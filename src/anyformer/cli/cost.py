"""`anyformer cost`: parameters, FLOPs, cache and training state, each with its convention."""

import json
import sys
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from anyformer.cli.names import PresetName, import_option

CHOICES = ("exact-causal", "full-attention")


@click.command()
@click.argument("model", type=PresetName())
@click.option("--seq-len", type=int, help="Tokens of a sequence; by default the published context.")
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences.")
@click.option(
    "--convention",
    type=click.Choice(CHOICES),
    default=CHOICES[0],
    show_default=True,
    help="Which pairs attention counts.",
)
@click.option(
    "--dtype", default="bfloat16", show_default=True, help="Of weights and cache: float32, bfloat16 or float16."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the same figures.")
@import_option
def command(model: str, seq_len: int | None, batch: int, convention: str, dtype: str, as_json: bool) -> None:
    """Say what an architecture costs. Nothing is allocated; a FLOP is one addition or multiplication."""
    from anyformer.costs import CONVENTIONS, cost
    from anyformer.hub import load_spec

    report = cost(load_spec(model), seq_len=seq_len, batch=batch, convention=convention, dtype=dtype)
    if as_json:
        click.echo(json.dumps({"model": model, **report.as_json()}, indent=1))
        return
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    count = report.parameters
    summary = _table(f"{model}, {report.batch} × {report.seq_len:,} tokens")
    summary.add_row(
        "parameters", f"{count.total:,}", f"{count.embedding:,} in tables, {count.non_embedding:,} beside them"
    )
    if count.inactive:
        summary.add_row("active", f"{count.active:,}", "used by one token: the experts it chooses, and all else")
    summary.add_row(
        "forward", f"{_si(report.forward_flops_per_token)}FLOPs/token", f"{convention}: {CONVENTIONS[convention]}"
    )
    summary.add_row("decoding", f"{_si(report.decode_flops_per_token)}FLOPs/token", "the last token, all others cached")
    summary.add_row(
        "training", f"{_si(report.training_flops_per_token)}FLOPs/token", "forward and backward, nothing recomputed"
    )
    summary.add_row("weights", _bytes(report.weights_nbytes), dtype)
    summary.add_row(
        "training state",
        _bytes(report.training_nbytes),
        "weights, gradients, AdamW's moments in float32; no activations",
    )
    summary.add_row("cache", _bytes(report.cache_nbytes), f"{dtype}, the whole batch at this context")
    console.print(summary)
    parts = _table("forward FLOPs by part")
    for term, flops in report.forward_flops.items():
        parts.add_row(term, f"{_si(flops)}FLOPs", f"{flops / report.forward_flops_total:6.1%}")
    console.print(parts)
    cache = _table("cache by kind")
    for kind in report.cache:
        said = f"{kind.nbytes_per_token:,} bytes/token in {kind.calls} layers, {kind.tokens:,} tokens kept"
        cache.add_row(kind.kind, _bytes(kind.nbytes), said)
    if report.cache:
        console.print(cache)


def _table(title: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 2, 0, 0)
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    return table


def _si(value: float) -> str:
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "


def _bytes(nbytes: Any) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            return f"{nbytes / 1024**power:.3g} {unit}"
    return f"{nbytes} bytes"
