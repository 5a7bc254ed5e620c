"""`anyformer convert SRC DST`: weights from one format into another."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from anyformer.cli.names import import_option

DTYPES = ("float32", "bfloat16", "float16")


@click.command("convert")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(["hf", "anyformer"]),
    help="The format; by default Hugging Face's where transformers has a class for the model, else ours.",
)
@click.option("--dtype", type=click.Choice(DTYPES), help="The type of the numbers; by default that of SRC.")
@import_option
def command(
    source: Path,
    target: Path,
    form: Literal["hf", "anyformer"] | None,
    dtype: Literal["float32", "bfloat16", "float16"] | None,
) -> None:
    """Bring weights from one format into another.

    SRC is a Hugging Face directory, one of ours, or a run; DST a new directory.
    """
    import torch

    from anyformer.hub import load, save

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    model, tokenizer = load(source, dtype=kinds[dtype] if dtype else None)
    click.echo(save(model, target, tokenizer, form=form))
