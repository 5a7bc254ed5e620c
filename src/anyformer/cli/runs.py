"""`anyformer runs`: what was trained in a folder, and how far it is."""

from dataclasses import asdict
from pathlib import Path

import click

from anyformer.cli.terminal import columns, console, tell


@click.command("runs")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default="runs")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(directory: Path, as_json: bool) -> None:
    """List the training runs in DIRECTORY (default: runs), oldest first.

    The keys of --json: `version`; `directory`; `runs`, objects of `name`, `architecture`, `n_params`, `step`, `steps`,
    `train_loss` and `validation_loss` (the last ones, nats a token), `state` (finished, interrupted, running or
    damaged), `date` (UTC). What is not known yet is null.
    """
    from anyformer.training.checkpoint.listing import RunSummary, list_runs

    runs = list_runs(directory)
    if as_json:
        tell({"version": 1, "directory": str(directory), "runs": [asdict(run) for run in runs]}, as_json)
        return
    if not runs:
        click.echo(f"no runs in {directory}; `anyformer train … --out {directory}/NAME` makes one")
        return

    def row(run: RunSummary) -> list[str]:
        return [
            run.name,
            run.architecture or "",
            "" if run.n_params is None else f"{run.n_params / 1e6:,.2f} M",
            f"{run.step:,}/{run.steps:,}" if run.steps is not None else "",
            "" if run.train_loss is None else f"{run.train_loss:.3f}",
            "" if run.validation_loss is None else f"{run.validation_loss:.3f}",
            run.state,
            (run.date or "").replace("T", " ")[:16],
        ]

    headings = ("run", "architecture", "parameters", "step", "loss", "validation", "state", "begun (UTC)")
    table = columns("", *headings)
    for run in runs:
        table.add_row(*row(run))
    console().print(table)
