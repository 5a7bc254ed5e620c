"""`anyformer history`: the field's table, read off the presets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from anyformer.cli.names import import_option
from anyformer.cli.options import Amount, json_option
from anyformer.cli.terminal import console, tell
from anyformer.errors import UsageError
from anyformer.screen import say

if TYPE_CHECKING:
    from anyformer.descriptions.history import History

HEAD = """# The field's table

Every generation of models that this package knows, by year: written by `anyformer history --markdown` from the
specifications, and a test fails where this page is behind them. A lineage is shown by the one preset that it is known by;
`anyformer diff A B --lineage` tells what each generation changed. Cells with a number are printed otherwise in published
versions of this table; the reasons are below it.

"""


@click.command()
@click.option("--since", type=Amount(most=9999), metavar="YEAR", help="Only models of this year and later.")
@click.option("--markdown", is_flag=True, help="A page of Markdown: docs/history.md.")
@click.option("--claims", is_flag=True, help="What was measured here of claims about each part, instead of the table.")
@json_option(help="One JSON object with the same cells.")
@import_option
def command(since: int | None, markdown: bool, claims: bool, as_json: bool) -> None:
    """Print year, norm, wiring, positions, activation, attention and tricks for stability of each lineage.

    \b
    anyformer history --since 2023
    anyformer history --claims
    anyformer history --markdown > history.md
    """  # noqa: D301 - click's mark, a backspace
    from anyformer.descriptions.history import WIDE, history, shown

    if markdown and as_json:
        raise UsageError("--markdown and --json are two forms of the same table; give one")
    if claims:
        if markdown or since is not None:
            raise UsageError("--claims are another table, which has no years; leave out --markdown and --since")
        _tell_claims(as_json)
        return
    found = history()
    chosen = tuple(entry for entry in found.entries if since is None or entry.year >= since)
    if not chosen:
        raise UsageError(f"--since {since}: the table ends in {found.entries[-1].year}")
    found = type(found)(found.columns, chosen)
    if as_json:
        tell(found, as_json)
    elif markdown:
        say(page(found), end="")
    else:
        out = console(WIDE)
        for each in shown(found, out.width):
            out.print(each)


def _tell_claims(as_json: bool) -> None:
    from rich.padding import Padding

    from anyformer.descriptions.history import WIDE
    from anyformer.study.evidence import record

    found = record()
    if as_json:
        tell(found, as_json)
        return
    out, part = console(WIDE), None
    for one in found.evidence:
        if one.part != part:
            part = one.part
            out.print(part, style="bold")
        out.print(Padding(f"{one.ruling}: {one.claim}", (0, 0, 0, 2)))
        out.print(Padding(f"{one.said}. {one.scale}; {one.study}", (0, 0, 0, 4)), style="dim")
    out.print("\nWhat each study did, could see and left out: docs/claims.md.")


def page(found: History) -> str:
    """The table as a page of Markdown."""
    from anyformer.descriptions.history import rows

    lines, notes = rows(found)
    columns = ["year", "model", "parameters", *found.columns]
    text = HEAD + f"| {' | '.join(columns)} |\n|---|---|---:|{'---|' * len(found.columns)}\n"
    text += "".join(f"| {' | '.join([line[0], f'`{line[1]}`', *line[2:]])} |\n" for line in lines)
    return text + "\nPrinted otherwise elsewhere:\n\n" + "".join(f"{i}. {note}.\n" for i, note in enumerate(notes, 1))
