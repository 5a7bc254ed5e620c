"""`anyformer tokenizer`: train one on one's own text, see what one makes of a text, compare several, audit a model's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import DIRECTORY, FILE, ONE_TEXT, VOCABULARY, Amount, as_option, choice, json_option
from anyformer.cli.terminal import console, tell
from anyformer.screen import columns, say
from anyformer.spec import is_path

KINDS = ("byte-level-bpe", "bpe", "wordpiece", "unigram", "words", "words-treebank", "words-spacy", "characters")


@click.group()
def command() -> None:
    """Train a tokenizer, encode text with one, compare several, or find what a model never learnt of its own."""


@command.command(
    epilog="Example: anyformer tokenizer train my-texts/ --kind wordpiece --vocab 30k --min-count 20 --out my-tokenizer"
)
@click.argument("text", metavar="TEXT")
@choice("--kind", KINDS, KINDS[0], "Of the vocabulary.")
@click.option(
    "--vocab",
    "vocab_size",
    type=VOCABULARY,
    default="4096",
    show_default=True,
    help="Tokens to learn; special ones come on top (of byte-level-bpe, the 256 bytes and <|endoftext|> count).",
)
@click.option(
    "--min-count",
    type=Amount(most=2**31),
    default=1,
    show_default=True,
    help="Rarer words or pairs are left out.",
)
@click.option("--special", "specials", multiple=True, help="A special token more, such as <mask>; may be repeated.")
@click.option("--out", type=DIRECTORY, required=True, help="Directory for tokenizer.json.")
@json_option(help="One JSON object: {version, out, vocab_size, kind, fingerprint, stride, …}.")
def train(text: str, as_json: bool, **given: Any) -> None:
    """Train a tokenizer on a file, a folder, or stdlib."""
    from anyformer.text.trained import tokenizer

    tell(tokenizer(text, **given), as_json)


@command.command()
@click.option("--tokenizer", "path", type=FILE, required=True, help="A tokenizer.json or its directory.")
@click.option("--text", help="What to encode; standard input without it.")
@json_option(help="One JSON object: {version, ids, pieces}.")
def encode(path: Path, text: str | None, as_json: bool) -> None:
    """Show the tokens of a text and their ids."""
    from anyformer.text import Tokenizer

    tokenizer = Tokenizer.load(path)
    # Whatever the terminal's own encoding is; what is no UTF-8 is refused by the tokenizer.
    given = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if text is None else text
    ids = tokenizer.encode(given)
    pieces = [tokenizer.decode([token]) for token in ids]
    if as_json:
        tell({"version": 1, "ids": ids, "pieces": pieces}, as_json)
        return
    for token, piece in zip(ids, pieces, strict=True):
        say(f"{token:>7}  {json.dumps(piece, ensure_ascii=False)}")


@command.command(epilog="Example: anyformer tokenizer compare byte-level-bpe wordpiece ./my-tokenizer --data my-texts/")
@click.argument("tokenizers", nargs=-1, required=True)
@click.option(
    "--data", "text", required=True, **ONE_TEXT, help="What they are compared on: a file, a folder, or stdlib."
)
@click.option("--vocab", type=VOCABULARY, default="4096", show_default=True, help="Tokens of those trained here.")
@click.option("--example", "examples", multiple=True, help="A text to show the splits of; may be repeated.")
@json_option(help="One JSON object: {version, tokenizers: [{name, …}], examples}.")
def compare(tokenizers: tuple[str, ...], text: str, vocab: int, examples: tuple[str, ...], as_json: bool) -> None:
    """Compare tokenizers on a text: directories of them, or kinds, which are trained on nine tenths of that text.

    All are judged on the last tenth, so that no one is judged on what it learnt from.
    """
    from anyformer.text.trained import EXAMPLE, compare_tokenizers

    named = [Path(name) if is_path(name) else name for name in tokenizers]
    found = compare_tokenizers(named, text, vocab_size=vocab, examples=examples or (EXAMPLE,))
    if as_json:
        tell(found, as_json)
        return
    measures = ("vocabulary", "bytes/token", "unknown", "unused", "median length", "longest", "restored", "MB/s")
    table = columns(f"{found.nbytes:,} bytes of {text}", "tokenizer", *measures)
    for name, r in found.tokenizers.items():
        shares = (f"{r.unknown_rate:.2%}", f"{r.unused_rate:.1%}")
        lengths = (f"{r.length_median:,.0f}", f"{r.length_max:,}", f"{r.restored_rate:.0%}")
        row = (f"{r.vocab_size:,}", f"{r.bytes_per_token:.2f}", *shares, *lengths, f"{r.nbytes_per_second / 1e6:.1f}")
        table.add_row(name, *row)
    console().print(table)
    for example, splits in found.examples.items():
        say(f"\n{example}")
        width = max(map(len, splits))
        for name, parts in splits.items():
            say(f"  {name:<{width}}  {len(parts):>3}  {' | '.join(parts)}")


@command.command(epilog="Example: anyformer tokenizer audit --model my-run --data my-texts/")
@click.option("--model", "path", required=True, help="A directory of ours or of Hugging Face, or a .gguf.")
@click.option("--data", "text", **ONE_TEXT, help="A text in which to count the tokens: a file, a folder, or stdlib.")
@click.option("--top", type=Amount(most=10**9), default=30, show_default=True, help="Tokens to show.")
@json_option(
    help="One JSON object: {version, compared_with, n_unreachable, suspects: [{token, spelling, similarity, norm, …}]}."
)
@as_option
@import_option
def audit(path: str, text: str | None, top: int, as_json: bool) -> None:
    """Find the tokens that a model hardly learnt ("glitch tokens") by their embeddings.

    A similarity near 1 says that a token's vector is like those of tokens that no text can hold.
    """
    from anyformer.inference import audit as audited

    found = audited(path, data=text, top=top)
    if as_json:
        tell(found, as_json)
        return
    say(f"compared with {found.compared_with}; {found.n_unreachable:,} tokens no text is encoded to")
    say("  token  similarity  norm  in the text  spelling")
    for suspect in found.suspects:
        count = "-" if suspect.count is None else f"{suspect.count:,}"
        name = json.dumps(suspect.spelling, ensure_ascii=False) + ("" if suspect.reachable else "  (unreachable)")
        say(f"{suspect.token:>7}  {suspect.similarity:>10.2f}  {suspect.norm:>4.2f}  {count:>11}  {name}")
