"""`anyformer profile`: run a model here, and set what is measured beside what was predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import Amount, as_option, json_option, params_option, precision_option, vocab_option
from anyformer.cli.terminal import console, tell
from anyformer.screen import columns, gigabytes, seconds, short

if TYPE_CHECKING:
    from anyformer.measure.profile import Beside, Profile


@click.command(epilog="Example: anyformer profile llama2-7b --params 10M --seq-len 256 --batch 4")
@click.argument("model", type=PresetName())
@params_option
@vocab_option
@click.option("--seq-len", type=Amount(), default=256, show_default=True, help="Tokens of a sequence.")
@click.option("--batch", type=Amount(), default=4, show_default=True, help="Sequences.")
@precision_option
@click.option("--device", "name", help="cpu, cuda …; the best there is by default.")
@json_option(help="One JSON object with the same figures.")
@as_option
@import_option
def command(model: str, name: str | None, as_json: bool, **given: Any) -> None:
    """Make some training steps and decode some tokens with a new model, and say where the time goes.

    Predicted times need `anyformer calibrate`, once. Random weights and tokens: speed does not depend on them, but for
    mixtures of experts, whose loads are even at the start.
    """
    from anyformer.measure.profile import profile

    found = profile(model, device=name, **given)
    calibrated = all(beside.predicted is not None for beside in found.seconds.values())
    if as_json:
        tell(found, as_json, model=model, calibrated=calibrated)
    else:
        _show(found, model, calibrated)


def _show(found: Profile, model: str, calibrated: bool) -> None:
    out = console()
    title = f"{model}, {short(found.n_params).strip()} parameters, {found.batch} × {found.seq_len:,} tokens, {found.precision}"
    table = columns(title, "", "measured", "predicted", "error")
    for phase, beside in found.seconds.items():
        what = "training step" if phase == "training" else "decoding, a token a row"
        table.add_row(what, *_beside(beside, seconds))
    table.add_row("activations kept", *_beside(found.activation_nbytes, gigabytes))
    if found.cache_nbytes is not None:
        table.add_row("cache", *_beside(found.cache_nbytes, gigabytes))
    out.print(table)
    if not calibrated:
        out.print("no predicted times: run `anyformer calibrate` once, while nothing else runs", style="dim")
    for phase, classes in found.as_json()["classes"].items():
        table = columns(phase, "", "FLOPs", "share of FLOPs", "time", "share of time")
        for name, figures in classes.items():
            table.add_row(
                name,
                short(figures["flops"]).strip(),
                f"{figures['share_of_flops']:.2%}",
                seconds(figures["seconds"]),
                f"{figures['share_of_seconds']:.1%}",
            )
        out.print(table)


def _beside(beside: Beside, words: Any) -> tuple[str, str, str]:
    if beside.predicted is None or beside.error is None:
        return words(beside.measured), "", ""
    return words(beside.measured), words(beside.predicted), f"{beside.error:+.1%}"
