"""`anyformer compare`: which architecture is better on your data and budget?"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anyformer.cli.amounts import Amount
from anyformer.cli.inputs import HeldOut, Sources, held_out_of, read_recipe, text_data
from anyformer.cli.labelled import labelled_data, with_truncation
from anyformer.cli.names import PresetName, import_option
from anyformer.cli.terminal import console, visible
from anyformer.errors import UsageError
from anyformer.recipe import OBJECTIVES, Labelled

if TYPE_CHECKING:
    from anyformer.recipe import Recipe
    from anyformer.spec import ModelSpec
    from anyformer.study.results import Study
    from anyformer.study.statistics import Analysis
    from anyformer.training.data.feed import TrainingData


class Rates(click.ParamType):
    """Learning rates, separated by commas."""

    name = "lr[,lr…]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            rates = tuple(dict.fromkeys(float(rate) for rate in str(value).split(",")))
        except ValueError:
            rates = ()
        if not rates or min(rates) <= 0:
            self.fail(f"'{value}' is no list of learning rates above 0; write 3e-4,1e-3", param, ctx)
        return rates


@click.command()
@click.argument("models", nargs=-1, required=True, type=PresetName(), metavar="MODEL…")
@click.option(
    "--data",
    default="stdlib",
    show_default=True,
    metavar="TEXT",
    help="A file, a folder, or stdlib (Python's own source); labelled text for an objective that reads labels.",
)
@click.option("--validation-data", metavar="TEXT", help="A text of its own to validate on, instead of a share.")
@click.option(
    "--objective",
    type=click.Choice(list(OBJECTIVES)),
    help="What all of them learn, and are judged by.  [default: the recipe's, the next token]",
)
@click.option("--truncate", is_flag=True, help="Cut labelled texts that are longer than a row.")
@click.option(
    "--validation", default=0.02, show_default=True, help="Share of the text that is set aside to validate on."
)
@click.option(
    "--params", type=Amount(), default="3M", show_default=True, help="Resize each architecture to so many parameters."
)
@click.option(
    "--count",
    type=click.Choice(["total", "non-embedding"]),
    default="total",
    show_default=True,
    help="Which parameters are made equal.",
)
@click.option("--as-they-are", is_flag=True, help="Keep the sizes that are given; only the vocabulary is fitted.")
@click.option(
    "--vocab", type=Amount(), default="4096", show_default=True, help="Tokens of the vocabulary that is trained first."
)
@click.option(
    "--tokenizer",
    "tokenizer_path",
    type=click.Path(exists=True, path_type=Path),
    help="A tokenizer.json to use instead.",
)
@click.option("--tokens", type=Amount(), help="Training tokens of each run.  [default: the recipe's]")
@click.option(
    "--equal",
    type=click.Choice(["tokens", "flops"]),
    default="tokens",
    show_default=True,
    help="What is equal: flops gives each the first one's.",
)
@click.option("--seq-len", type=Amount(), help="Tokens a row.  [default: the recipe's]")
@click.option("--batch-tokens", type=Amount(), help="Tokens an optimiser step.  [default: the recipe's]")
@click.option(
    "--recipe", "recipe_name", default="quick", show_default=True, metavar="NAME", help="A recipe, or its file."
)
@click.option(
    "--lr", "rates", type=Rates(), default=(), help="Learning rates: each architecture gets the best of them."
)
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each architecture.")
@click.option("--precision", type=click.Choice(["float32", "bf16"]), help="Of matrix products.")
@click.option("--compile", "compiled", is_flag=True, help="Compile the models first.")
@click.option("--device", help="cpu, cuda, mps …; the best there is by default.")
@click.option("--prompt", default="def ", show_default=True, help="What each model continues, for the samples.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/compare"),
    show_default=True,
    help="Directory of the runs and the report.",
)
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object on stdout.")
@import_option
def command(
    models: tuple[str, ...],
    data: str,
    validation_data: str | None,
    objective: str | None,
    truncate: bool,
    validation: float,
    params: int,
    count: str,
    as_they_are: bool,
    vocab: int,
    tokenizer_path: Path | None,
    tokens: int | None,
    equal: str,
    seq_len: int | None,
    batch_tokens: int | None,
    recipe_name: str,
    rates: tuple[float, ...],
    seeds: int,
    precision: str | None,
    compiled: bool,
    device: str | None,
    prompt: str,
    out: Path,
    as_json: bool,
) -> None:
    """Train architectures on the same text in the same order, and say what can be said about which is better.

    Text is judged in bits a byte, labels by how many are right, other objectives by their loss.

    Leaves report.html, study.json and runs.csv in --out, and each run's directory beside them. What has run there with the
    same settings is not run again. Exit status 1 if a run failed; the others are reported all the same.
    """
    from anyformer.measure import calibrate
    from anyformer.measure.calibrate import dtype_name
    from anyformer.study.compare import Question, check, compare, named, refuses
    from anyformer.study.describe import describe
    from anyformer.study.report import write_report
    from anyformer.study.statistics import analyse
    from anyformer.training.run import RunOptions
    from anyformer.training.run.progress import live_view
    from anyformer.training.step.device import choose_device, compute_dtype

    changes = {"tokens": tokens, "seq_len": seq_len, "batch_tokens": batch_tokens, "precision": precision}
    recipe = read_recipe(recipe_name, changes | {"objective": OBJECTIVES[objective] if objective else None})
    recipe = with_truncation(recipe) if truncate else recipe
    if reason := refuses(recipe.objective):
        raise UsageError(f"architectures cannot be compared by {recipe.objective.kind}: {reason}")
    held_out = held_out_of("text", validation, validation_data, None, None)
    corpus, text = _text(data, held_out, tokenizer_path, vocab, recipe)
    specs = [_fitted(name, None if as_they_are else params, count, text, recipe) for name in models]
    question = Question(
        architectures=named(models, specs),
        recipe=recipe,
        seeds=seeds,
        learning_rates=rates,
        equal="flops" if equal == "flops" else "tokens",
        prompt=prompt,
    )
    check(question, text)
    where, dtype = choose_device(device), compute_dtype(recipe.precision)
    machine = calibrate(where, (dtype,))
    peak = machine.peak_flops_per_second[dtype_name(dtype)]
    click.echo(f"{corpus}\nruns and report: {out}", err=True)
    options = RunOptions(
        device=where,
        compiled=compiled,
        validation_share=0.01,
        peak=lambda *_: peak,
        save_every=recipe.steps,
        keep_last=1,
    )
    runs, tuning = compare(question, text, out, options, live_view)
    words = shlex.join(["anyformer", *sys.argv[1:]])
    study = describe(question, runs, tuning, text, corpus=corpus, command=words, machine=machine, peak=peak)
    analysis = analyse(study)
    report = write_report(study, out / "report.html", analysis=analysis)
    (out / "study.json").write_text(study.to_json(), encoding="utf-8")
    (out / "runs.csv").write_text(study.to_csv(), encoding="utf-8")
    _show(study, analysis, report, as_json)
    if any(run.failure for run in runs):
        sys.exit(1)


def _text(
    name: str, held_out: HeldOut, tokenizer_path: Path | None, vocab: int, recipe: Recipe
) -> tuple[str, TrainingData]:
    from anyformer.text import Tokenizer, read_corpus

    known = Tokenizer.load(tokenizer_path) if tokenizer_path else None
    if isinstance(recipe.objective, Labelled):
        data = labelled_data(Sources(name, None, None), held_out, known, vocab, recipe.objective, None, None)
        if cut := data.cut(recipe):
            click.echo(f"{cut:,} texts are cut to {recipe.seq_len} tokens (--truncate)", err=True)
        about = f"{len(data.labels)} classes" if data.labels else "numbers"
        return f"{name}: {len(data.train.rows):,} examples of {about}, sha256 {data.train.fingerprint[:16]}", data
    corpus = read_corpus(name)
    text = text_data(corpus, held_out, known, vocab, recipe.objective)
    said = "Python's standard library" if name == "stdlib" else name
    words = f"{said}: {len(corpus.documents):,} documents, {corpus.nbytes:,} bytes, sha256 {corpus.fingerprint[:16]}"
    return words, text


def _fitted(name: str, n_params: int | None, count: str, data: TrainingData, recipe: Recipe) -> ModelSpec:
    """The architecture at the size that is compared, with the objective's head and learned positions for its rows."""
    from anyformer.hub import load_spec
    from anyformer.resizing import resize
    from anyformer.training.objectives.objective import with_head_for

    which = "total" if count == "total" else "non_embedding"
    spec = with_head_for(load_spec(name), recipe.objective, data.labels)
    return resize(spec, n_params=n_params, vocab_size=data.vocab_size, context=recipe.seq_len, count=which)


def _show(study: Study, analysis: Analysis, report: Path, as_json: bool) -> None:
    from rich.text import Text

    from anyformer.study.rows import as_json as answer
    from anyformer.study.table import results_table

    if as_json:
        click.echo(json.dumps({**answer(study, analysis), "report": str(report)}, indent=1, ensure_ascii=False))
        return
    out = console(100)
    out.print(results_table(study, analysis, width=out.width))
    for run in study.runs:
        if run.sample and run.seed == study.runs[0].seed:
            out.rule(Text(f"a sample of {run.architecture}"), align="left", style="dim")
            out.print(Text(visible(run.sample)))
    out.rule(style="dim")
    out.print(f"report: {report.resolve()}", soft_wrap=True)
