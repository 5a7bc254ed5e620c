"""`anyformer compare`: which architecture is better on your data and budget?"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyformer.cli.names import PresetName, import_option
from anyformer.cli.options import (
    DIRECTORY,
    FILE,
    ONE_TEXT,
    SHARE,
    VOCABULARY,
    Amount,
    RateList,
    as_option,
    choice,
    device_option,
    json_option,
    minutes_option,
)
from anyformer.cli.recipe_options import recipe_options
from anyformer.cli.terminal import console, tell

if TYPE_CHECKING:
    from anyformer.spec import ModelSpec
    from anyformer.study.comparison import Comparison


@click.command()
@click.argument("models", nargs=-1, required=True, type=PresetName(), metavar="MODEL…")
@click.option(
    "--data",
    default=["stdlib"],
    show_default=True,
    **ONE_TEXT,
    help="A file, a folder, or stdlib (Python's own source); labelled text for an objective that reads labels.",
)
@click.option("--validation-data", **ONE_TEXT, help="A text of its own to validate on, instead of a share.")
@click.option("--truncate", is_flag=True, help="Cut labelled texts that are longer than a row.")
@click.option(
    "--validation", type=SHARE, default=0.02, show_default=True, help="Share of the text set aside to validate on."
)
@click.option("--params", "n_params", type=Amount(), default="3M", show_default=True, help="Resize each to so many.")
@choice("--count", ("total", "non-embedding"), "total", "Which parameters are made equal.")
@click.option("--as-they-are", is_flag=True, help="Keep the sizes that are given; only the vocabulary is fitted.")
@click.option(
    "--vocab", "vocab_size", type=VOCABULARY, default="4096", show_default=True, help="Tokens that are learnt."
)
@click.option("--tokenizer", type=FILE, help="A tokenizer.json to use instead.")
@choice("--equal", ("tokens", "flops"), "tokens", "What is equal: flops gives each the first one's.")
@click.option("--recipe", default="quick", show_default=True, metavar="NAME", help="A recipe, or its file.")
@recipe_options
@minutes_option
@click.option(
    "--lr",
    "learning_rates",
    type=RateList(),
    default=(),
    help="Learning rates: each architecture gets the best of them.",
)
@click.option("--seeds", type=Amount(most=10**6), default=1, show_default=True, help="Runs of each architecture.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the models first.")
@device_option
@click.option(
    "--prompt", help="What each model continues, for the samples.  [default: the validation text's first words]"
)
@click.option(
    "--out",
    type=DIRECTORY,
    default=Path("runs/compare"),
    show_default=True,
    help="Directory of the runs and the report.",
)
@json_option(help="The answer as one JSON object on stdout.")
@as_option
@import_option
def command(
    models: tuple[str, ...], n_params: int, as_they_are: bool, as_json: bool, changes: dict[str, Any], **given: Any
) -> None:
    """Train architectures on the same text in the same order, and say what can be said about which is better.

    Text is judged in bits a byte, labels by how many are right, other objectives by their loss.

    Leaves report.html, study.json and runs.csv in --out, and each run's directory beside them. What has run there with the
    same settings is not run again. Exit status 1 if a run failed; the others are reported all the same.
    """
    from anyformer.study.comparison import compare

    given["count"] = given["count"].replace("-", "_")
    begin = None if as_json else _show_differences
    found = compare(models, n_params=None if as_they_are else n_params, begin=begin, **given, **changes)
    if as_json:
        tell(found, as_json)
    else:
        _show(found)
    if any(run.failure for run in found.study.runs):
        sys.exit(1)


def _show_differences(architectures: Mapping[str, ModelSpec]) -> None:
    """The architectures side by side as they will be trained: what there is to read meanwhile."""
    from anyformer.descriptions import side_by_side
    from anyformer.descriptions.diff.shown import table, totals

    if len(architectures) > 1:
        found, out = side_by_side(*architectures.values(), names=tuple(architectures)), console()
        out.print(table(found), totals(found), "", sep="\n")


def _show(found: Comparison) -> None:
    from anyformer.study.table import results_table

    study, report = found.study, found.report
    out = console(100)
    out.print(results_table(study, found.analysis, width=out.width))
    for run in study.runs:
        if run.sample and run.seed == study.runs[0].seed:
            out.rule(f"a sample of {run.architecture}", align="left", style="dim")
            out.print(run.sample)
    out.rule(style="dim")
    out.print(f"report: {report.resolve()}", soft_wrap=True)
