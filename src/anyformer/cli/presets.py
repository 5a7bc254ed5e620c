"""`anyformer presets`: the published architectures known by name."""

import click

from anyformer.cli.names import catalogue
from anyformer.cli.options import json_option
from anyformer.cli.terminal import console, plain_table, tell
from anyformer.errors import UsageError, did_you_mean
from anyformer.screen import say

GAP = 2  # columns of a table
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
        others = [model for model in catalogue("undisclosed") if family in (None, model["family"])]
        tell({"version": 1, "presets": chosen, "undisclosed": others}, as_json)
        return
    rows = [
        (", ".join((p["name"], *p["aliases"])), *(f"{p[size] or 0:,}" for size in SIZES), p["source"]) for p in chosen
    ]
    widths = [max(map(len, cells)) for cells in zip(("name", *SIZES, "source"), *rows, strict=True)]
    # A terminal shows as much of the source as it has room for; a file or a pipe gets all of it.
    out = console(sum(widths) + GAP * len(widths))
    room = max(out.width - sum(widths[:-1]) - GAP * len(SIZES) - GAP, 10)
    looks = [
        {"header": name, "justify": "right", "min_width": width} for name, width in zip(SIZES, widths[1:], strict=False)
    ]
    looks = [{"header": "name", "min_width": widths[0]}, *looks]
    source = {"header": "source", "overflow": "ellipsis", "no_wrap": True, "max_width": room}
    table = plain_table("", *looks, source, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for row in rows:
        table.add_row(*row)
    out.print(table)
    if family is None:
        say("\nNot public, so not to be built or costed; `anyformer show NAME` says what is known:")
        for model in catalogue("undisclosed"):
            say(f"{model['name']}  {model['source']}")
