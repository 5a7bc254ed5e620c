"""`anyformer presets`: the published architectures known by name."""

import click

from anyformer.cli.names import catalogue, from_outside, import_option
from anyformer.cli.options import json_option
from anyformer.cli.terminal import console, tell
from anyformer.errors import UsageError, among
from anyformer.screen import FIGURE, plain_table

GAP = 2  # columns of a table
LEAST_SOURCE = 24  # columns of a source that is worth showing
SIZES = ("parameters", "layers", "d_model", "context")


@click.command()
@click.option("--family", metavar="NAME", help="Only this lineage: gpt2, llama, transformer …")
@json_option(help="One JSON object: {version, presets: [{name, family, parameters, …}], undisclosed}.")
@import_option
def command(family: str | None, as_json: bool) -> None:
    """List the published architectures, with what they are and where they come from."""
    known = list(catalogue())
    if registered := from_outside():
        from anyformer.families.registry import records

        known += records(registered)
    families = {preset["family"] for preset in known}
    if family is not None and family not in families:
        raise UsageError(f"there is no family '{family}'{among(family, sorted(families))}")
    chosen = [preset for preset in known if family in (None, preset["family"])]
    if as_json:
        others = [model for model in catalogue("undisclosed") if family in (None, model["family"])]
        tell({"version": 1, "presets": chosen, "undisclosed": others}, as_json)
        return
    rows = [
        (", ".join([p["name"], *p["aliases"]]), *(f"{p[size] or 0:,}" for size in SIZES), p["source"]) for p in chosen
    ]
    widths = [max(map(len, cells)) for cells in zip(("name", *SIZES, "source"), *rows, strict=True)]
    # A terminal shows the sources where it has room for them; a file or a pipe gets all of it.
    out = console(sum(widths) + GAP * len(widths))
    looks = [{"header": "name"}, *({"header": name, **FIGURE} for name in SIZES), {"header": "source"}]
    looks = looks if out.width >= sum(widths[:-1]) + GAP * len(widths) + LEAST_SOURCE else looks[:-1]
    table = plain_table("", *looks, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for row in rows:
        table.add_row(*row[: len(looks)])
    out.print(table)
    if family is None:
        out.print("\nNot public, so not to be built or costed; `anyformer show NAME` says what is known:")
        for model in catalogue("undisclosed"):
            out.print(f"{model['name']}  {model['source']}")
