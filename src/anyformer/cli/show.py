"""`anyformer show`: what an architecture is."""

import json
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from anyformer.cli.names import PresetName, import_option

if TYPE_CHECKING:
    from anyformer.families import Undisclosed


@click.command()
@click.argument("model", type=PresetName())
@click.option(
    "--spec",
    "form",
    type=click.Choice(["yaml", "json"]),
    help="Print the specification itself, to be saved and changed.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object: {version, name, source, published, erratum, tokenizer, recipe, card, …}.",
)
@import_option
def command(model: str, form: str | None, as_json: bool) -> None:
    """Show an architecture: a preset, a file of ours, an HF directory or its config.json, or a run."""
    from anyformer.costs import card
    from anyformer.families import UNDISCLOSED, find
    from anyformer.hub import load_spec
    from anyformer.recipe import dumps as dumps_recipe
    from anyformer.spec import dumps

    if model in UNDISCLOSED and form is None:
        _tell(UNDISCLOSED[model], as_json)
        return
    spec, preset = load_spec(model), find(model)
    if form is not None:
        click.echo(dumps(spec, "json" if form == "json" else "yaml"), nl=False)
        return
    rows = card(spec)
    told = {name: getattr(preset, name) for name in ("source", "published", "erratum", "tokenizer")} if preset else {}
    if as_json:
        recipe = json.loads(dumps_recipe(preset.recipe, "json")) if preset and preset.recipe else None
        data = {
            "version": 1,
            "name": preset.name if preset else model,
            **told,
            "recipe": recipe,
            "card": rows,
            "specification": json.loads(dumps(spec, "json")),
        }
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    table = _table(preset.name if preset else model)
    for name, value in {**rows, **{name: text for name, text in told.items() if text}}.items():
        table.add_row(name, value)
    if preset and preset.recipe:
        table.add_row("recipe", dumps_recipe(preset.recipe).rstrip())
    _print(table)


def _tell(model: "Undisclosed", as_json: bool) -> None:
    """Say what is public of a model that cannot be built, and what is not."""
    if as_json:
        data = {name: getattr(model, name) for name in ("name", "source", "public", "missing")}
        click.echo(json.dumps({"version": 1, **data}, indent=1, ensure_ascii=False))
        return
    table = _table(model.name)
    table.add_row("public", "; ".join(model.public))
    table.add_row("not public", f"{model.missing}: it cannot be built or costed")
    table.add_row("source", model.source)
    _print(table)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)
