"""`anyformer cost`: parameters, FLOPs, activations, training state and cache, each with its convention."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.answers import keeps_answers
from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import DeviceName
from anyformer.cli.terminal import console, figures
from anyformer.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from anyformer.costs.sections import Section
    from anyformer.spec import Recompute

CONVENTIONS = (
    *("exact-causal", "full-attention", "causal-half", "6nd", "palm-mfu"),
    *("megatron", "chinchilla", "narang-macs", "opt-table"),
)


@click.command()
@click.argument("model", type=PresetName())
@click.option("--seq-len", type=int, help="Tokens of a sequence; by default the published context.")
@click.option("--source-len", type=int, help="Tokens that an encoder reads; by default as many.")
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences.")
@click.option(
    "--convention",
    type=click.Choice(CONVENTIONS),
    default=CONVENTIONS[0],
    show_default=True,
    help="What is counted as FLOPs.",
)
@click.option(
    "--dtype", help="Of inference's weights and cache: float32, bfloat16, float16.  [default: the first the device has]"
)
@click.option(
    "--precision",
    type=click.Choice(["float32", "bf16"]),
    default="bf16",
    show_default=True,
    help="Of matrix products in training; all that is kept is float32.",
)
@click.option(
    "--recompute",
    type=click.Choice(["none", "selective", "full"]),
    default="none",
    show_default=True,
    help="What the backward pass makes again.",
)
@click.option("--device", type=DeviceName(), help="Times on one: H100, A100-80GB, TPUv4 …, this, or a YAML file.")
@click.option("--price-per-hour", type=float, help="Of the device, in your currency.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the same figures.")
@import_option
@keeps_answers()
def command(
    model: str,
    seq_len: int | None,
    source_len: int | None,
    batch: int,
    convention: str,
    dtype: str | None,
    precision: Any,
    recompute: Recompute,
    device: str | None,
    price_per_hour: float | None,
    as_json: bool,
) -> None:
    """Say what an architecture costs. Nothing is allocated; a FLOP is one addition or multiplication.

    Example: anyformer cost llama3-8b --seq-len 8192 --batch 4 --recompute full
    """
    from anyformer.costs import cost
    from anyformer.costs.sections import sections
    from anyformer.hub import load_spec

    spec, times = load_spec(model), None
    report = cost(
        spec,
        seq_len=seq_len,
        source_len=source_len,
        batch=batch,
        convention=convention,
        dtype=dtype or "bfloat16",
        precision=precision,
        recompute=recompute,
    )
    if device is not None:
        from anyformer.costs.hardware.roofline import roofline
        from anyformer.measure.here import found_device

        times = roofline(
            spec,
            device=found_device(device),
            seq_len=report.seq_len,
            source_len=source_len,
            batch=batch,
            dtype=dtype,
            price_per_hour=price_per_hour,
        )
    elif price_per_hour is not None:
        raise UsageError("--price-per-hour is of a --device; name one")
    if as_json:
        click.echo(json.dumps({"model": model, **report.as_json(), "roofline": times and times.as_json()}, indent=1))
        return
    out = console()
    out.print(f"{model}, {report.batch} × {report.seq_len:,} tokens", style="bold")
    # One by one: what formulas give is read while the last table, of what is observed, is worked out.
    for section in sections(report):
        out.print(_table(section))
    if times is not None:
        from anyformer.costs.hardware.sections import roofline_sections

        for section in roofline_sections(times):
            out.print(_table(section))


def _table(section: Section) -> Table:
    table = figures(section.title)
    for line in section.lines:
        table.add_row(*line)
    return table
