"""`anyformer study`: models, sizes, budgets and seeds by a file, and what they say of its claims."""

from __future__ import annotations

import sys
from typing import Any

import click

from anyformer.cli.names import IMPORTED, import_option
from anyformer.cli.options import DIRECTORY, FILE, ONE_TEXT, Amount, device_option
from anyformer.screen import say


@click.command(epilog="Example: anyformer study studies/03-norms.yaml --dry-run")
@click.argument("file", type=FILE)
@click.option("--data", **ONE_TEXT, help="Another text than the file's: a file, a folder, or stdlib.")
@click.option("--out", type=DIRECTORY, help="Directory of the runs and findings.  [default: runs/ and the file's name]")
@click.option(
    "--runs-in",
    type=DIRECTORY,
    help="Where runs lie; studies may share it, equal runs are made once.  [default: OUT/runs]",
)
@click.option("--jobs", type=Amount(most=256), default=1, show_default=True, help="Processes that make runs.")
@click.option("--dry-run", is_flag=True, help="Say what it takes and what it can see, and run nothing.")
@click.option("--runs-only", is_flag=True, help="Make runs, beside other processes, and write no findings.")
@device_option
@import_option
def command(file: str, dry_run: bool, **given: Any) -> None:
    """Run the study in FILE, a YAML or JSON file, and say of each of its claims: supported, contradicted or undecided.

    What has run is not run again, and a run that was killed goes on. Leaves findings.md, findings.json and a report for each
    size and budget in --out. Exit status 1 if a run failed; the findings say which.
    """
    from anyformer.study.run_study import plan_study, run_study

    if dry_run:
        say(str(plan_study(file, data=given["data"], out=given["out"], runs_in=given["runs_in"])))
        return
    found = run_study(file, imports=click.get_current_context().meta[IMPORTED], **given)
    if found is None:
        return
    say(found.page.read_text(encoding="utf-8").rstrip())
    say(f"\nfindings: {found.page.resolve()}")
    if any(run.failure for runs in found.findings.runs.values() for run in runs):
        sys.exit(1)
