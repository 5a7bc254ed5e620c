"""`anyformer tokenizer`: train a byte-level BPE on one's own text, or see what one makes of a text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from anyformer.cli.amounts import Amount
from anyformer.cli.terminal import visible
from anyformer.errors import UsageError


@click.group()
def command() -> None:
    """Train a tokenizer, or encode text with one."""


@command.command()
@click.argument("text", metavar="TEXT")
@click.option(
    "--vocab",
    type=Amount(),
    default="4096",
    show_default=True,
    help="Tokens, the 256 bytes and <|endoftext|> among them.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Directory for tokenizer.json."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object: {version, out, vocab_size, kind, fingerprint, bytes_per_token}.",
)
def train(text: str, vocab: int, out: Path, as_json: bool) -> None:
    """Train a byte-level BPE on a file, a folder, or stdlib."""
    from anyformer.text import Tokenizer, read_corpus

    if (out / "tokenizer.json").exists():
        raise UsageError(f"{out} holds a tokenizer already; name another directory, or remove it first")
    corpus = read_corpus(text)
    tokenizer = Tokenizer.train(corpus.texts(), vocab)
    tokenizer.save(out)
    n_tokens = sum(len(ids) for ids in tokenizer.encode_corpus(corpus.texts()))
    found = {
        "version": 1,
        "out": str(out),
        "vocab_size": tokenizer.vocab_size,
        "kind": tokenizer.kind,
        "fingerprint": tokenizer.fingerprint,
        "bytes_per_token": corpus.nbytes / n_tokens,
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        click.echo(
            f"{tokenizer.vocab_size:,} tokens, {found['bytes_per_token']:.2f} bytes a token on this text; saved in {out}"
        )


@command.command()
@click.option(
    "--tokenizer",
    "path",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="A tokenizer.json or its directory.",
)
@click.option("--text", help="What to encode; standard input without it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: {version, ids, pieces}.")
def encode(path: Path, text: str | None, as_json: bool) -> None:
    """Show the tokens of a text and their ids."""
    from anyformer.text import Tokenizer

    tokenizer = Tokenizer.load(path)
    ids = tokenizer.encode(sys.stdin.read() if text is None else text)
    pieces = [tokenizer.decode([token]) for token in ids]
    if as_json:
        click.echo(json.dumps({"version": 1, "ids": ids, "pieces": pieces}, ensure_ascii=False))
        return
    for token, piece in zip(ids, pieces, strict=True):
        click.echo(f"{token:>7}  {visible(json.dumps(piece, ensure_ascii=False))}")
