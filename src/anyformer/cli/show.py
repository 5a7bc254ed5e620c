"""`anyformer show`: what an architecture is."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anyformer.cli.answers import keeps_answers
from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import PATH, as_option, json_option
from anyformer.cli.terminal import console, tell
from anyformer.disk.atomic import refuse_place, write_named
from anyformer.errors import UsageError
from anyformer.screen import facts, say

if TYPE_CHECKING:
    from anyformer.descriptions import Diagram
    from anyformer.families import Undisclosed

JSON_VERSION = 2


@click.command()
@click.argument("model", type=PresetName())
@click.option("--spec", "form", type=click.Choice(["yaml", "json"]), help="Print the specification, to be changed.")
@click.option(
    "--diagram",
    "picture",
    type=PATH,
    metavar="FILE",
    help="Draw it as well, into a file that ends in .svg, .png or .pdf.",
)
@click.option("--no-diagram", "plain", is_flag=True, help="Print the card alone, without the diagram in text.")
@json_option(help="One JSON object: {version, name, card, recipe, specification, …}.")
@as_option
@import_option
@keeps_answers("picture")
def command(model: str, form: str | None, picture: Path | None, plain: bool, as_json: bool) -> None:
    """Show an architecture: its card, row by row, and a block diagram.

    MODEL is a preset, a file of ours, an HF directory or its config.json, or a run. For example:

    anyformer show gemma3-27b --diagram gemma3.svg
    """
    from anyformer.descriptions import FORMS, card, diagram
    from anyformer.families import UNDISCLOSED, find
    from anyformer.hub import load_spec
    from anyformer.recipe import dumps as dumps_recipe
    from anyformer.recipe import of_run
    from anyformer.spec import dumps, is_path

    if picture is not None and picture.suffix.lower() not in FORMS:
        raise UsageError(f"--diagram {picture}: pictures are .svg, .png or .pdf; give a name that ends in one of these")
    if picture is not None:
        refuse_place("--diagram", picture)
    if form is not None and as_json:
        raise UsageError("--spec prints the specification alone, which is also in what --json prints; give one")
    if model in UNDISCLOSED and form is None:
        if picture is not None:
            raise UNDISCLOSED[model].refusal()
        _tell(UNDISCLOSED[model], as_json)
        return
    spec, preset = load_spec(model), None if is_path(model) else find(model)
    name = preset.name if preset else model
    if picture is not None:
        _draw(diagram(spec), picture, name)
    if form is not None:
        say(dumps(spec, "json" if form == "json" else "yaml"), end="")
        return
    recipe = preset.recipe if preset else of_run(model)
    rows = card(preset or spec, recipe)
    if as_json:
        data = {"version": JSON_VERSION, "name": name, "card": rows.as_json()}
        data["recipe"] = json.loads(dumps_recipe(recipe, "json")) if recipe else None
        data["specification"] = json.loads(dumps(spec, "json"))
        tell(data, as_json)
        return
    console().print(rows.table(name))
    if not plain:
        _print_diagram(diagram(spec))


def _draw(drawn: "Diagram", path: Path, title: str) -> None:
    from anyformer.descriptions import as_picture

    write_named(path, as_picture(drawn, path.suffix.lower(), title), "the diagram ")


def _print_diagram(drawn: "Diagram") -> None:
    from anyformer.descriptions import as_text

    lines, width = as_text(drawn), console().width
    if max(map(len, lines.splitlines())) > width:
        console().print(f"\nThe diagram is wider than {width} columns; --diagram FILE.svg draws it as a picture.")
        return
    say(f"\n{lines}")


def _tell(model: "Undisclosed", as_json: bool) -> None:
    """Say what is public of a model that cannot be built, and what is not."""
    if as_json:
        data = {name: getattr(model, name) for name in ("name", "source", "public", "missing")}
        tell(data, as_json, version=JSON_VERSION)
        return
    table = facts(model.name)
    table.add_row("public", "; ".join(model.public))
    table.add_row("not public", f"{model.missing}: it cannot be built or costed")
    table.add_row("source", model.source)
    console().print(table)
