"""`anyformer embed`: texts as vectors, in a file; or how alike a few texts are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import (
    NEW_FILE,
    ONE_FILE_OF_TEXTS,
    Amount,
    as_option,
    device_option,
    json_option,
    run_option,
    truncate_option,
)
from anyformer.cli.terminal import console, tell
from anyformer.errors import UsageError
from anyformer.screen import plain_table

SHORT = 40  # characters of a text that a table shows


@click.command()
@run_option
@click.option("--text", "texts", multiple=True, help="A text. Several are compared with each other.")
@click.option("--data", **ONE_FILE_OF_TEXTS, help="A file of texts, one a line.")
@click.option("--out", type=NEW_FILE, help="Where the vectors go: .safetensors or .npy, a row for each text in order.")
@click.option(
    "--pool",
    type=click.Choice(["mean", "first", "last"]),
    help="What makes one vector of the tokens.  [default: the model's head, else what suits the architecture]",
)
@click.option("--prompt", help="What goes before each text, such as 'query: '; '' is nothing.")
@click.option("--prompt-name", help="One of the prompts that a directory of sentence-transformers has.")
@click.option("--dimensions", type=Amount(), help="How many numbers of a vector are kept.  [default: all]")
@truncate_option
@click.option("--batch-tokens", type=Amount(), default=4096, show_default=True, help="Tokens computed at once.")
@device_option
@json_option(help="One JSON object on stdout.")
@as_option
@import_option
def command(
    model: Path,
    texts: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    batch_tokens: int,
    device: str | None,
    as_json: bool,
    **way: Any,
) -> None:
    """Make a vector of each text by the model in DIR: an encoder, a decoder, or a directory of sentence-transformers.

    Vectors have length 1, so that products are cosines; a few texts are compared with each other in a table. `--json` gives
    version, pool, prompt, width, texts (how many), cut (how many were longer than is read), out, and of a few texts similarities.

      anyformer embed --model runs/sentences --data lines.txt --out vectors.safetensors
    """
    if (data is None) != bool(texts):
        raise UsageError("give either --data, or --text once or several times")
    if data is not None and out is None:
        raise UsageError("--out is missing: name a .safetensors or .npy file for the vectors")
    from anyformer.inference.embedding import Pooling, embedded

    read = list(texts) if data is None else data
    found = embedded(model, None, read, Pooling(**way), batch_tokens=batch_tokens, device=device, out=out)
    if found.similarities is not None and data is None and not as_json:
        _table(list(texts), found.similarities)
    tell(found, as_json)


def _table(texts: list[str], similar: list[list[float]]) -> None:
    table = plain_table("", {}, {"header": "text"}, *({"header": f"{i}"} for i, _ in enumerate(texts, 1)))
    for i, (text, row) in enumerate(zip(texts, similar, strict=True), 1):
        shown = text if len(text) <= SHORT else text[: SHORT - 1] + "…"
        table.add_row(str(i), shown, *(f"{value:.3f}" for value in row))
    console().print(table)
