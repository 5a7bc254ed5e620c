"""`anyformer embed`: texts as vectors, in a file; or how alike a few texts are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.terminal import visible
from anyformer.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.inference.embedding import Pool

JSON_VERSION = 1
TENSOR = "embeddings"  # in a .safetensors file
SHORT = 40  # characters of a text that a table shows
MOST_TEXTS = 20  # that a table has columns for


@click.command()
@click.option(
    "--model", required=True, type=click.Path(path_type=Path), metavar="DIR", help="A run, or an HF directory."
)
@click.option("--text", "texts", multiple=True, help="A text. Several are compared with each other.")
@click.option(
    "--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file of texts, one a line."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the vectors go: .safetensors or .npy, a row for each text in order.",
)
@click.option(
    "--pool",
    type=click.Choice(["mean", "first", "last"]),
    help="What makes one vector of the tokens.  [default: the model's head, else what suits the architecture]",
)
@click.option("--truncate", is_flag=True, help="Cut texts that the model has no room for.  [default: as trained]")
@click.option("--batch-tokens", default=4096, show_default=True, help="Tokens computed at once.")
@click.option("--device", help="cpu, cuda, mps …; the best there is by default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@import_option
def command(
    model: Path,
    texts: tuple[str, ...],
    data: Path | None,
    out: Path | None,
    pool: Pool | None,
    truncate: bool,
    batch_tokens: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Make a vector of each text by the model in DIR: an encoder, a decoder, or a directory of sentence-transformers.

    Vectors have length 1, so that products are cosines; a few texts are compared with each other in a table. `--json` gives
    version, pool, width, texts (how many), cut (how many were longer than is read), out, and of a few texts similarities.

      anyformer embed --model runs/sentences --data lines.txt --out vectors.safetensors
    """
    if (data is None) != bool(texts):
        raise UsageError("give either --data, or --text once or several times")
    if data is not None and out is None:
        raise UsageError("--out is missing: name a .safetensors or .npy file for the vectors")
    if out is not None and out.suffix not in (".safetensors", ".npy"):
        raise UsageError(f"--out {out}: vectors go into a .safetensors or an .npy file; give it one of these endings")
    if batch_tokens < 1:
        raise UsageError(f"--batch-tokens {batch_tokens} is nothing; give 1 or more")
    from anyformer.hub import load
    from anyformer.inference.embedding import embedded, pool_of
    from anyformer.recipe import Contrastive, of_run
    from anyformer.text.parallel import read_lines
    from anyformer.training.step.device import choose_device

    lines = read_lines(data) if data is not None else list(texts)
    if data is not None:
        blank = next((i for i, line in enumerate(lines, 1) if not line.strip()), None)
        if blank is not None or not lines:
            raise UsageError(f"{data}, line {blank or 1}: there is no text; every line gets a vector, so leave it out")
    transformer, tokenizer = load(model, device=choose_device(device))
    if tokenizer is None:
        raise UsageError(f"--model {model} has no tokenizer, so it cannot read a text; put a tokenizer.json beside it")
    trained, longest = of_run(model), None
    if trained is not None and isinstance(trained.objective, Contrastive):
        longest, truncate = trained.seq_len, truncate or trained.objective.truncate
    found = embedded(
        transformer, tokenizer, lines, pool=pool, longest=longest, truncate=truncate, batch_tokens=batch_tokens
    )
    if out is not None:
        _write(found.vectors, out)
    similar = None
    if 1 < len(lines) <= MOST_TEXTS:
        unit = found.vectors / found.vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
        similar = (unit @ unit.T).tolist()
    told: dict[str, Any] = {
        "version": JSON_VERSION,
        "pool": pool_of(transformer.spec, pool).kind,
        "width": found.vectors.shape[1],
        "texts": len(lines),
        "cut": found.cut,
        "out": out and str(out),
        "similarities": similar,
    }
    if as_json:
        click.echo(json.dumps(told, indent=1))
        return
    if similar is not None and data is None:
        _table(lines, similar)
    cut = f", {found.cut:,} of them cut" if found.cut else ""
    place = f" in {out}" if out else ""
    click.echo(f"{len(lines):,} vectors of {told['width']:,} numbers by {told['pool']}{cut}{place}")


def _table(texts: list[str], similar: list[list[float]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "text", *(str(i) for i in range(1, len(texts) + 1)))
    for i, (text, row) in enumerate(zip(texts, similar, strict=True), 1):
        shown = visible(text)
        shown = shown if len(shown) <= SHORT else shown[: SHORT - 1] + "…"
        table.add_row(str(i), Text(shown), *(f"{value:.3f}" for value in row))
    Console().print(table)


def _write(vectors: Tensor, out: Path) -> None:
    """Write the file whole or not at all."""
    import io

    import numpy as np
    from safetensors.torch import save

    from anyformer.disk.atomic import replace_file

    if out.suffix == ".npy":
        held = io.BytesIO()
        np.save(held, vectors.numpy())
        content = held.getvalue()
    else:
        content = save({TENSOR: vectors.contiguous()}, {"format": "pt"})
    try:
        replace_file(out, content)
    except OSError as error:
        raise RunFailed(f"could not write {out}: {error.strerror or error}") from None
