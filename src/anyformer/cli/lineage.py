"""`anyformer diff A B --lineage`: the way from one preset to another, a generation at a time."""

from __future__ import annotations

import json

import click
from rich.table import Table

from anyformer.cli.terminal import console
from anyformer.errors import UsageError


def show(models: tuple[str, ...], *, as_json: bool) -> None:
    """Print the steps. Raises UsageError unless there are two presets."""
    from anyformer.descriptions import lineage
    from anyformer.families import find

    if len(models) != 2:
        raise UsageError(f"--lineage walks from one architecture to another; give two, not {len(models)}")
    presets = []
    for model in models:
        preset = find(model)
        if preset is None:
            raise UsageError(f"--lineage knows the ancestors of presets alone, and {model} is none; leave it out")
        presets.append(preset)
    steps = lineage(*presets)
    if as_json:
        data = {"version": 1, "names": [preset.name for preset in presets], "steps": [step.as_json() for step in steps]}
        click.echo(json.dumps(data, indent=1, ensure_ascii=False))
        return
    out = console()
    if not steps:
        out.print(f"{presets[0].name} and {presets[1].name} are equal: every part, every tensor.")
    for step in steps:
        a, b = step.names
        back = ", back: what came later was" if step.back else ""
        out.print(f"[bold]{a} → {b}[/bold] ({step.year}{back}) {step.changed} [dim]{step.source}[/dim]")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
        table.add_column(style="cyan", no_wrap=True, min_width=18)
        table.add_column(overflow="fold")
        for row in step.parts:
            table.add_row(row.part, " → ".join(row.values))
        sizes = [f"{row.part} {' → '.join(row.values)}" for row in step.rows if row not in step.parts]
        if sizes:
            table.add_row("sizes", "; ".join(sizes), style="dim")
        out.print(table)
