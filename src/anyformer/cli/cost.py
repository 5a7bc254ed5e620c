"""`anyformer cost`: parameters, FLOPs, activations, training state and cache, each with its convention."""

from __future__ import annotations

from itertools import chain
from typing import Any

import click

from anyformer.cli.answers import keeps_answers
from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import PRECISIONS, RECOMPUTE, Amount, DeviceName, Number, as_option, choice, json_option
from anyformer.cli.terminal import console, tell
from anyformer.errors import UsageError

CONVENTIONS = (
    *("exact-causal", "full-attention", "causal-half", "6nd", "palm-mfu"),
    *("megatron", "chinchilla", "narang-macs", "opt-table"),
)


@click.command()
@click.argument("model", type=PresetName())
@click.option("--seq-len", type=Amount(), help="Tokens of a sequence; by default the published context.")
@click.option("--source-len", type=Amount(), help="Tokens that an encoder reads; by default as many.")
@click.option("--batch", type=Amount(), default=1, show_default=True, help="Sequences.")
@choice("--convention", CONVENTIONS, CONVENTIONS[0], "What is counted as FLOPs.")
@click.option(
    "--dtype",
    help="Of inference's weights and cache: float32, bfloat16, float16; of weights alone int8, int4, nf4.  "
    "[default: the first the device has]",
)
@click.option("--cache-dtype", type=click.Choice(("int8",)), help="Of inference's cache.  [default: as --dtype]")
@choice("--precision", PRECISIONS, "bf16", "Of matrix products in training; all that is kept is float32.")
@choice("--recompute", RECOMPUTE, "none", "What the backward pass makes again.")
@click.option("--device", type=DeviceName(), help="Times on one: H100, A100-80GB, TPUv4 …, this, or a YAML file.")
@click.option("--price-per-hour", type=Number(0), help="Of the device, in your currency.")
@json_option(help="One JSON object with the same figures.")
@as_option
@import_option
@keeps_answers()
def command(
    model: str, dtype: str | None, device: str | None, price_per_hour: float | None, as_json: bool, **given: Any
) -> None:
    """Say what an architecture costs. Nothing is allocated; a FLOP is one addition or multiplication.

    Example: anyformer cost llama3-8b --seq-len 8192 --batch 4 --recompute full
    """
    from anyformer.costs import cost
    from anyformer.costs.sections import sections
    from anyformer.hub import load_spec

    spec, times = load_spec(model), None
    report = cost(spec, dtype=dtype or "bfloat16", **given)
    if device is not None:
        from anyformer.measure import roofline

        asked = {"seq_len": report.seq_len, "source_len": given["source_len"], "batch": given["batch"], "dtype": dtype}
        times = roofline(spec, device=device, price_per_hour=price_per_hour, **asked)
    elif price_per_hour is not None:
        raise UsageError("--price-per-hour is of a --device; name one")
    if as_json:
        tell({"model": model, **report.as_json(), "roofline": times and times.as_json()}, as_json)
        return
    out = console()
    out.print(f"{model}, {report.batch} × {report.seq_len:,} tokens", style="bold")
    found = sections(report)
    if times is not None:
        from anyformer.costs.hardware.sections import roofline_sections

        found = chain(found, roofline_sections(times))
    # One by one: what formulas give is read while the last table, of what is observed, is worked out.
    for section in found:
        out.print(section.table())
