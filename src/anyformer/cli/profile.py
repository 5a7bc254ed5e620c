"""`anyformer profile`: run a model here, and set what is measured beside what was predicted."""

from __future__ import annotations

from typing import Any

import click

from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import (
    DTYPES,
    PACKINGS,
    Amount,
    as_dtype,
    as_option,
    choice,
    json_option,
    params_option,
    precision_option,
    vocab_option,
)
from anyformer.cli.terminal import console, tell


@click.command(epilog="Example: anyformer profile llama2-7b --params 10M --seq-len 256 --batch 4")
@click.argument("model", type=PresetName())
@params_option
@vocab_option
@click.option("--seq-len", type=Amount(), default=256, show_default=True, help="Tokens of a sequence.")
@click.option("--batch", type=Amount(), default=4, show_default=True, help="Sequences.")
@precision_option
@choice(
    "--dtype", (*DTYPES, *PACKINGS), DTYPES[0], "Of weights and cache in decoding; int8, int4 and nf4: of weights alone"
)
@click.option("--device", "name", help="cpu, cuda …; the best there is by default.")
@json_option(help="One JSON object with the same figures.")
@as_option
@import_option
def command(model: str, name: str | None, dtype: str, as_json: bool, **given: Any) -> None:
    """Make some training steps and, where a model writes, decode some tokens, with new weights, and say where the time goes.

    Predicted times need `anyformer calibrate`, once. Random weights and tokens: speed does not depend on them, but for
    mixtures of experts, whose loads are even at the start.
    """
    from anyformer.measure.profile import profile

    found = profile(model, device=name, dtype=as_dtype(dtype), **given)
    if as_json:
        tell(found, as_json, model=model, calibrated=found.calibrated)
    else:
        out = console()
        for section in found.sections(model):
            out.print(section)
