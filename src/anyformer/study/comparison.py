"""Which of several architectures is better on a text, as one call: trained alike, judged alike, written up."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from anyformer import measure
from anyformer.disk.atomic import replace_file
from anyformer.disk.run_layout import is_run
from anyformer.errors import UsageError, errors_of
from anyformer.notebook import as_html
from anyformer.recipe import Recipe
from anyformer.resizing import Counted, resize
from anyformer.spec import Architecture, ModelSpec, is_path, label, specification, split_variant
from anyformer.study.budget import in_time
from anyformer.study.compare import (
    ComparisonTask,
    Watch,
    at_size,
    check,
    first_words,
    named,
    refuse_incomparable,
    run_all,
)
from anyformer.study.describe import describe
from anyformer.study.encoding import refuse_other
from anyformer.study.report import write_report
from anyformer.study.results import Study
from anyformer.study.statistics import Analysis, analyse
from anyformer.study.table import as_json
from anyformer.text import Tokenizer
from anyformer.training.chosen_recipe import changed, with_truncation
from anyformer.training.objectives.objective import with_head_for
from anyformer.training.prepare import Say, Sources, held_out_of, read_data, to_stderr
from anyformer.training.run import RunOptions
from anyformer.training.run.budget import refuse_both
from anyformer.training.run.chart import LossCurves
from anyformer.training.run.progress import live_view
from anyformer.training.run.teaching import rows_for
from anyformer.training.step.device import choose_device, compute_dtype

STUDY = "study.json"
STDLIB = "Python's standard library"


@dataclass(frozen=True)
class Comparison:
    """A study, what can be said of it, and the report in which it says so."""

    study: Study
    analysis: Analysis
    report: Path

    def as_json(self) -> dict[str, Any]:
        """Plain data; the keys are those of `study.table.as_json`, and `report`."""
        return {**as_json(self.study, self.analysis), "report": str(self.report)}

    def _repr_html_(self) -> str:
        told = self.as_json()
        said = {name: told[name] for name in ("sentences", "baselines", "report")}
        rows = [{name: value for name, value in row.items() if name != "finding"} for row in told["rows"]]
        return as_html({"rows": rows, "findings": [row["finding"] for row in told["rows"]], **said}, self.study.title)


def compare(
    architectures: Iterable[Architecture],
    data: str | Path = "stdlib",
    *,
    validation: float = 0.02,
    validation_data: str | Path | None = None,
    n_params: float | None = 3_000_000,
    count: Counted = "total",
    vocab_size: int = 4096,
    tokenizer: Tokenizer | str | Path | None = None,
    truncate: bool = False,
    recipe: str | Path | Recipe = "quick",
    learning_rates: Sequence[float] = (),
    seeds: int = 1,
    equal: Literal["tokens", "flops"] = "tokens",
    minutes: float | None = None,
    prompt: str | None = None,
    out: str | Path = "runs/compare",
    compiled: bool = False,
    device: str | None = None,
    begin: Callable[[Mapping[str, ModelSpec]], None] | None = None,
    watch: Watch | None = None,
    say: Say = to_stderr,
    **changes: Any,
) -> Comparison:
    """Architectures trained on the same text in the same order, and what can be said about which is better.

    Each is resized to `n_params` parameters, `count` of them; None keeps the sizes that are given. `recipe` is a name, a file or
    a recipe, `changes` are fields of it, such as tokens=2e6 or objective="masked-lm"; of `learning_rates` each gets the best.
    `equal` "flops" gives each the first one's FLOPs. `minutes`, in the place of tokens, are for all runs together, as steps timed
    here say; what was found is kept in `out`, so that the same call goes on. `prompt` is what each continues, for the samples:
    the validation text's first words unless given. `begin` is told of the architectures, at their sizes, before the first run;
    `watch` makes the view of a run, by its title. `out` gets
    report.html, study.json, runs.csv and each run's directory; what has run there with the same settings is not run again.

    A run that fails is one of the study's with a `failure`. Raises UsageError, TextError and what else stops all of them.
    """
    refuse_both(minutes, changes)
    given = list(architectures)
    chosen = changed(recipe, changes)
    chosen = with_truncation(chosen) if truncate else chosen
    refuse_incomparable(chosen)
    own = Sources(validation_data, prefix="validation-") if validation_data is not None else None
    text, about = read_data(
        chosen, Sources(data), held_out_of("text", validation, own), tokenizer=tokenizer, vocab_size=vocab_size, say=say
    )
    words = f"{STDLIB if data == 'stdlib' else data}: {about}"

    def sized(architecture: Architecture) -> ModelSpec:
        with errors_of(_name(architecture)):
            spec = with_head_for(specification(architecture), chosen.objective, text.labels)
            if n_params is None:
                return resize(spec, vocab_size=rows_for(chosen, text))
            return at_size(spec, int(n_params), count, chosen, text)

    question = ComparisonTask(
        architectures=named([_name(each) for each in given], [sized(each) for each in given]),
        recipe=chosen,
        seeds=seeds,
        learning_rates=tuple(learning_rates),
        equal=equal,
        prompt=first_words(text) if prompt is None else prompt,
    )
    check(question, text)
    directory = Path(out)
    if is_run(directory):
        raise UsageError(f"--out {out} is a run of `train`; give another one, or a new name")
    refuse_other(directory / STUDY, ("data", "fingerprint"), text.fingerprint, "a comparison on another text")
    where, dtype = choose_device(device), compute_dtype(chosen.precision)
    machine = measure.calibrate(where, (dtype,))
    say(f"{words}\nruns and report: {directory}")
    for each in given:
        if isinstance(each, str | Path) and is_path(each) and Path(split_variant(each)[0]).is_dir():
            say(f"{each} is an architecture here, trained anew; `anyformer evaluate` judges the weights that it has")
    options = RunOptions(
        device=where,
        compiled=compiled,
        validation_share=0.01,
        peak=lambda dtype, _: machine.peak(dtype),
        save_every=chosen.steps,
        keep_last=1,
    )
    if minutes is not None:
        question = in_time(minutes, question, text, directory, options, say)
        options = replace(options, save_every=question.recipe.steps)
    view = watch or partial(live_view, curves=LossCurves())
    if begin is not None:
        begin(question.architectures)
    runs, tuning = run_all(question, text, directory, options, view)
    command = shlex.join(["anyformer", *sys.argv[1:]])
    study = describe(question, runs, tuning, text, corpus=words, command=command, machine=machine)
    analysis = analyse(study)
    report = write_report(study, directory / "report.html", analysis)
    replace_file(directory / STUDY, study.to_json().encode())
    replace_file(directory / "runs.csv", study.to_csv().encode())
    return Comparison(study, analysis, report)


def _name(architecture: Architecture) -> str:
    """What a table calls an architecture: the name it was given by or has, else its sizes."""
    if isinstance(architecture, str | Path):
        return label(architecture)
    if name := getattr(architecture, "name", None):
        return str(name)
    spec = specification(architecture)
    return f"{spec.n_layers} layers of {spec.stack.d_model}"
