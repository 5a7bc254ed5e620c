"""`anyformer runs`: what was trained in a folder, and how far it is."""

from dataclasses import asdict
from pathlib import Path

import click

from anyformer.amounts import count
from anyformer.cli.options import json_option
from anyformer.cli.terminal import console, tell
from anyformer.screen import columns, say

LESS = ("begun (UTC)", "architecture", "parameters", "loss")  # what a narrow terminal leaves out, in this order
GAP = 2  # between columns


@click.command("runs")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
@json_option(help="Print JSON.")
def command(directory: Path, as_json: bool) -> None:
    """List the training runs in DIRECTORY (default: runs), oldest first.

    The keys of --json: `version`; `directory`; `runs`, objects of `name`, `architecture`, `n_params`, `step`, `steps`,
    `train_loss` and `validation_loss` (the last ones, nats a token), `state` (finished, interrupted, running or
    damaged), `date` (UTC). What is not known yet is null.
    """
    from anyformer.training.checkpoint.listing import list_runs

    runs = list_runs(directory)
    if as_json:
        tell({"version": 1, "directory": str(directory), "runs": [asdict(run) for run in runs]}, as_json)
        return
    if not runs:
        say(f"no runs in {directory}; `anyformer train … --out {directory}/NAME` makes one")
        return

    shown = {
        "run": [run.name for run in runs],
        "architecture": [run.architecture or "" for run in runs],
        "parameters": ["" if run.n_params is None else count(run.n_params) for run in runs],
        "step": [f"{run.step:,}/{run.steps:,}" if run.steps is not None else "" for run in runs],
        "loss": ["" if run.train_loss is None else f"{run.train_loss:.3f}" for run in runs],
        "validation": ["" if run.validation_loss is None else f"{run.validation_loss:.3f}" for run in runs],
        "state": [run.state for run in runs],
        "begun (UTC)": [(run.date or "").replace("T", " ")[:16] for run in runs],
    }
    out = console()
    widths = {name: max(map(len, (name, *cells))) + GAP for name, cells in shown.items()}
    told = dict(shown)
    for name in LESS:
        if sum(widths[name] for name in told) > out.width:
            del told[name]
    shown = shown if sum(widths[name] for name in told) > out.width else told  # as paragraphs there is room for all
    table = columns("", *shown)
    for column in table.columns[1:]:
        column.no_wrap = True
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    out.print(table)
