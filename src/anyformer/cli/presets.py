"""`anyformer presets`: the published architectures known by name."""

import sys

import click
from rich.console import Console
from rich.table import Table

from anyformer.cli.names import catalogue, undisclosed
from anyformer.cli.options import json_option
from anyformer.cli.terminal import tell
from anyformer.errors import UsageError, did_you_mean

SIZES = ("parameters", "layers", "d_model", "context")


@click.command()
@click.option("--family", metavar="NAME", help="Only this lineage: gpt2, llama, transformer …")
@json_option(help="One JSON object: {version, presets: [{name, family, parameters, …}], undisclosed}.")
def command(family: str | None, as_json: bool) -> None:
    """List the published architectures, with what they are and where they come from."""
    known = catalogue()
    families = {preset["family"] for preset in known}
    if family is not None and family not in families:
        raise UsageError(
            f"there is no family '{family}'{did_you_mean(family, families)}; there are {', '.join(sorted(families))}"
        )
    chosen = [preset for preset in known if family in (None, preset["family"])]
    if as_json:
        others = [model for model in undisclosed() if family in (None, model["family"])]
        tell({"version": 1, "presets": chosen, "undisclosed": others}, as_json)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [
        (", ".join((p["name"], *p["aliases"])), *(f"{p[size] or 0:,}" for size in SIZES), p["source"]) for p in chosen
    ]
    used = 0
    for column, cells in zip(("name", *SIZES), zip(*rows, strict=False), strict=False):
        width = max(len(column), *map(len, cells))
        table.add_column(column, justify="left" if column == "name" else "right", min_width=width)
        used += width + 2  # and the gap
    # A terminal shows as much of the source as it has room for; a file or a pipe gets all of it.
    longest = max(len(preset["source"]) for preset in chosen)
    room = Console().width - used if sys.stdout.isatty() else longest
    table.add_column("source", overflow="ellipsis", no_wrap=True, max_width=max(room, 10))
    for row in rows:
        table.add_row(*row)
    Console(width=used + max(room, 10), highlight=False).print(table)
    if family is None:
        click.echo("\nNot public, so not to be built or costed; `anyformer show NAME` says what is known:")
        for model in undisclosed():
            click.echo(f"{model['name']}  {model['source']}")
