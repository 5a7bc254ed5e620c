"""`anyformer cost`: parameters, FLOPs, activations, training state and cache, each with its convention."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import DeviceName
from anyformer.cli.terminal import console, figures
from anyformer.errors import UsageError

if TYPE_CHECKING:
    from anyformer.costs.sections import Section
    from anyformer.spec import Recompute

DEFAULT = click.core.ParameterSource.DEFAULT
CONVENTIONS = ("exact-causal", "full-attention", "palm-mfu", "megatron", "chinchilla", "narang-macs", "opt-table")


@click.command()
@click.argument("model", type=PresetName())
@click.option("--seq-len", type=int, help="Tokens of a sequence; by default the published context.")
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences.")
@click.option(
    "--convention",
    type=click.Choice(CONVENTIONS),
    default=CONVENTIONS[0],
    show_default=True,
    help="What is counted as FLOPs.",
)
@click.option(
    "--dtype",
    default="bfloat16",
    show_default=True,
    help="Of inference's weights and cache: float32, bfloat16, float16.",
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
def command(
    model: str,
    seq_len: int | None,
    batch: int,
    convention: str,
    dtype: str,
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

    spec = load_spec(model)
    report = cost(
        spec,
        seq_len=seq_len,
        batch=batch,
        convention=convention,
        dtype=dtype,
        precision=precision,
        recompute=recompute,
    )
    times = None
    if device is not None:
        from anyformer.costs.hardware.roofline import roofline
        from anyformer.measure.here import found_device

        where = found_device(device)
        dtypes = (
            (dtype, "float16", "float32")
            if click.get_current_context().get_parameter_source("dtype") == DEFAULT
            else (dtype,)
        )
        times = roofline(
            spec,
            device=where,
            seq_len=report.seq_len,
            batch=batch,
            dtype=next((each for each in dtypes if each in where.peak_flops_per_second), dtype),
            price_per_hour=price_per_hour,
        )
    elif price_per_hour is not None:
        raise UsageError("--price-per-hour is of a --device; name one")
    if as_json:
        click.echo(json.dumps({"model": model, **report.as_json(), "roofline": times and times.as_json()}, indent=1))
        return
    tables = list(sections(report))
    if times is not None:
        from anyformer.costs.hardware.sections import roofline_sections

        tables += roofline_sections(times)
    _print(f"{model}, {report.batch} × {report.seq_len:,} tokens", tables)


def _print(title: str, tables: Iterable[Section]) -> None:
    out = console()
    out.print(title, style="bold")
    for section in tables:
        table = figures(section.title)
        for line in section.lines:
            table.add_row(*line)
        out.print(table)
