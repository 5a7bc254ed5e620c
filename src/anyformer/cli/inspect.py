"""`anyformer inspect`: what is inside a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import (
    NEW_FILE,
    ONE_TEXT,
    PATH,
    Amount,
    as_option,
    device_option,
    json_option,
    judging_options,
    pair_options,
)
from anyformer.cli.terminal import console, tell
from anyformer.screen import say


@click.command()
@click.argument("model", metavar="DIR", type=PATH)
@click.option("--data", **ONE_TEXT, help="A file, a folder, or stdlib: what figures are the means over.")
@click.option("--text", help="A text itself, which is read token by token; without --data the figures are of it too.")
@pair_options
@click.option("--tokens", type=Amount(), default=4096, show_default=True, help="About so many tokens, always the same.")
@click.option("--seq-len", type=Amount(), help="Tokens a row.  [default: as trained]")
@judging_options
@device_option
@click.option("--out", type=NEW_FILE, help="A page with all of it and the attention of each head, which opens offline.")
@json_option(help="One JSON object on stdout.")
@as_option
@import_option
def command(model: Path, out: Path | None, as_json: bool, **given: Any) -> None:
    """What each layer and head of the model in DIR does on a text, where heads look, what it would say half way.

    Of layers and branches: the loss without each, and if the model ended there; of heads: how much they matter (the
    gradient), and what they look at; how few neurons and experts do most. `--json` gives version, objective, unit, loss,
    labels, layers, heads, parts, reading (of a row, token by token) and importance, of heads, neurons and experts by the
    tensor that they write with.

    \b
    anyformer inspect runs/first --data my-texts/ --out inside.html
    anyformer inspect runs/first --text "The cat slept because it was tired."
    """  # noqa: D301
    from anyformer.inspection import inspect
    from anyformer.inspection.page import refuse_page, write_page
    from anyformer.inspection.printed import sections

    if out is not None:
        refuse_page(out)  # before all is measured
    found = inspect(model, **given)
    if as_json:
        tell(found, as_json)
    else:
        shown = console()
        for section in sections(found):
            shown.print(section)
    if out is not None:
        say(f"{write_page(found, out, title=str(model))}: open it in a browser", stderr=True)
