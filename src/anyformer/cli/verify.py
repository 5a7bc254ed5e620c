"""`anyformer verify DIR`: does a checkpoint compute here what it computes in transformers?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import ONE_FILE, PATH, Amount, as_option, json_option
from anyformer.cli.terminal import tell
from anyformer.screen import say


@click.command("verify")
@click.argument("path", metavar="DIR", type=PATH)
@click.option("--text", type=ONE_FILE, help="File to read; random tokens otherwise.")
@click.option("--tokens", "n_tokens", default=256, show_default=True, type=Amount(most=10**6), help="How many to read.")
@json_option(help="The answer as one JSON object on stdout.")
@as_option
@import_option
def command(path: Path, text: Path | None, n_tokens: int, as_json: bool) -> None:
    """Run the checkpoint in DIR (or a GGUF file) here and in transformers, and compare them layer by layer.

    Differences are set beside those that rounding alone makes: between transformers' own kernels, eager and sdpa, and
    where it has one kernel, or layers that are no attention, between our float32 and float64. Exit status 1
    where the two differ by more. `--json` gives version, architecture, transformers, n_tokens, same_next_tokens, agrees,
    first_difference (a place's name, or null) and places (name, ours, theirs).
    """
    from anyformer.measure.verify import TIMES, verify
    from anyformer.text.sources import read_text

    found = verify(path, None if text is None else read_text(text), n_tokens)
    differs = found.first_difference
    if as_json:
        tell(found, as_json)
    else:
        width = max(len(place.name) for place in found.places)
        say(f"{'':{width}}  here to transformers  {'by rounding alone':>21}")
        for place in found.places:
            mark = "" if place.agrees else "  differs"
            say(f"{place.name:{width}}  {place.ours:20.1e}  {place.theirs:21.1e}{mark}")
        what = f"{found.architecture} of transformers {found.transformers}, {found.n_tokens} tokens, float32"
        if differs is None:
            ours, theirs = max(p.ours for p in found.places), max(p.theirs for p in found.places)
            say(
                f"{what}: they agree: at most {ours:.1e} apart, where rounding alone makes {theirs:.1e}; "
                f"the same first choice at {found.same_next_tokens:.1%} of places"
            )
        else:
            say(
                f"{what}: they differ first at {differs.name}, by {differs.ours:.1e}; "
                f"{TIMES:g} times what its own kernels differ by there ({differs.theirs:.1e}) would pass for rounding"
            )
    sys.exit(0 if differs is None else 1)
