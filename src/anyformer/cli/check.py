"""`anyformer check`: is this a sane design?"""

from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from anyformer.cli.answers import keeps_answers
from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import as_option, json_option
from anyformer.cli.terminal import console, tell
from anyformer.screen import plain_table

if TYPE_CHECKING:
    from anyformer.descriptions import FieldPosition, Finding

JSON_VERSION = 1
COLOURS = {"error": "bold red", "consequence": "cyan", "note": "yellow"}
FEW = 4  # presets that break a habit


@click.command()
@click.argument("spec", type=PresetName())
@json_option(help="One JSON object: {version, model, ok, findings, field}.")
@as_option
@import_option
@keeps_answers()
def command(spec: str, as_json: bool) -> None:
    """Say what cannot work in an architecture, what follows from it, and where it stands in the field.

    SPEC is a preset, a file of ours, an HF directory or its config.json, or a run. Exit status 1 where there is an error.
    For example:

    anyformer check my-model.yaml
    """
    from anyformer.descriptions import check, field_comparison
    from anyformer.errors import RunFailed
    from anyformer.hub import load_spec

    model = load_spec(spec)
    found = check(model)
    errors = [finding for finding in found if finding.severity == "error"]
    places = () if any(finding.about == "sizes" for finding in errors) else field_comparison(model)
    if as_json:
        findings, field = [vars(finding) for finding in found], [place.as_json() for place in places]
        tell({"version": JSON_VERSION, "model": spec, "ok": not errors, "findings": findings, "field": field}, as_json)
    else:
        _print(spec, found, places)
    if errors:
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise RunFailed(f"{spec}: {errors[0].text}{more}")


def _print(name: str, found: tuple["Finding", ...], places: tuple["FieldPosition", ...]) -> None:
    out = console()
    table = _table(name)
    for finding in found:
        colour = COLOURS[finding.severity]
        table.add_row(Text(finding.severity, style=colour), finding.about, finding.text)
    out.print(table)
    if not places:
        return
    field = _table("in the field")
    for place in places:
        habit = f"published {place.range_in_words}"
        outliers = [f"{name} {place.shown(value)}" for name, value in list(place.outliers.items())[:FEW]]
        more = len(place.outliers) - len(outliers)
        if outliers:
            habit += f"; unlike the others: {', '.join(outliers)}" + (f" and {more} more" if more else "")
        rule = f" ({place.rule})" if place.rule else ""
        field.add_row(f"{place.name}{rule}", place.shown(place.value), f"{place.strip}\n{habit}")
    out.print()
    out.print(field)


def _table(title: str) -> Table:
    return plain_table(title, {"no_wrap": True}, {"style": "cyan"}, {"overflow": "fold"}, show_header=False)
