"""`anyformer show`: what an architecture is."""

import json
import sys

import click
from rich.console import Console
from rich.table import Table

from anyformer.cli.names import PresetName, import_option


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
    from anyformer.families import find
    from anyformer.hub import load_spec
    from anyformer.recipe import dumps as dumps_recipe
    from anyformer.spec import dumps

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
    table = Table(
        title=preset.name if preset else model, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in {**rows, **{name: text for name, text in told.items() if text}}.items():
        table.add_row(name, value)
    if preset and preset.recipe:
        table.add_row("recipe", dumps_recipe(preset.recipe).rstrip())
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)
