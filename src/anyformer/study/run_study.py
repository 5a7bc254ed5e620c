"""A study as one call: read from its file, foreseen, run by several processes or by one, written up."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from anyformer import measure
from anyformer.amounts import count, counted, duration, prefixed
from anyformer.disk.atomic import replace_file
from anyformer.errors import RunFailed, UsageError
from anyformer.study.cells import Cell, Runs, read_texts
from anyformer.study.compare import ComparisonTask
from anyformer.study.describe import describe
from anyformer.study.encoding import refuse_other
from anyformer.study.findings import Findings, as_markdown, find, foreseen
from anyformer.study.report import write_report
from anyformer.study.results import RunResult
from anyformer.study.specification import read_study
from anyformer.study.statistics import analyse
from anyformer.training.cluster.joining import end_with_parent
from anyformer.training.prepare import Say, to_stderr
from anyformer.training.run import RunOptions
from anyformer.training.step.device import choose_device, compute_dtype

FINDINGS = "findings.json"
WORKER_OF = "ANYFORMER_STUDY_PID"  # in the environment of another process of --jobs: whose death ends it
SHARE_OF_PEAK = 0.3  # that training reaches of a machine's measured peak, where no run has told


@dataclass(frozen=True)
class StudyPlan:
    """What a study takes, before it runs. A grid of rates that must go on takes more."""

    runs: int
    done: int  # of these
    tokens: int
    flops: float
    seconds: float  # of what is left, one run after the other, by the machine's measured peak
    sees: str

    def __str__(self) -> str:
        return (
            f"{counted(self.runs, 'run')}, {self.done:,} of them made; {count(self.tokens)} tokens, "
            f"{prefixed(self.flops, 'FLOP')}, about {duration(self.seconds)} for what is left\n{self.sees}"
        )


@dataclass(frozen=True)
class StudyResult:
    """The findings of a study and where they are written."""

    findings: Findings
    page: Path  # Markdown; findings.json and a report.html for each size and budget lie beside it


def plan_study(
    file: str | Path,
    *,
    data: str | None = None,
    out: str | Path | None = None,
    runs_in: str | Path | None = None,
    say: Say = to_stderr,
) -> StudyPlan:
    """What the study in a file takes. Raises what `run_study` does for bad input."""
    runs = _prepared(file, data, _folder(file, out, runs_in), None, say)
    cells = list(runs.cells(ahead=True))
    left = [cell for cell in cells if runs.result(cell) is None]
    done = [run for cell in cells if (run := runs.result(cell)) is not None and run.finished]
    flops = sum(map(runs.flops, cells))
    speed = sum(run.flops for run in done) / sum(run.seconds for run in done) if done else _peak(runs) * SHARE_OF_PEAK
    tokens = sum(runs.question(cell).recipe.tokens for cell in cells)
    seconds = sum(map(runs.flops, left)) / speed
    return StudyPlan(len(cells), len(cells) - len(left), tokens, flops, seconds, foreseen(runs.spec))


def run_study(
    file: str | Path,
    *,
    data: str | None = None,
    out: str | Path | None = None,
    runs_in: str | Path | None = None,
    jobs: int = 1,
    device: str | None = None,
    imports: Sequence[str | Path] = (),
    runs_only: bool = False,
    say: Say = to_stderr,
) -> StudyResult | None:
    """The study in a YAML or JSON file, run and written up in `out`: runs/ beside a name like the file's, unless given.

    Any number of processes may work in one directory; `jobs` starts so many. Runs lie in `runs_in`, which studies may share, or
    in runs/ in `out`: what has run is not run again, a run that was killed goes on, one that failed is a row of the table. `data`
    is another text than the file's; `imports` are Python files with parts of your own, which the other processes import too. With
    `runs_only` runs are made until none is left, and nothing is written up: None is returned. Raises SpecError, UsageError,
    TextError, and Stopped at a signal.
    """
    if WORKER_OF in os.environ:
        end_with_parent(int(os.environ[WORKER_OF]), signal.SIGTERM)
    runs = _prepared(file, data, _folder(file, out, runs_in), device, say)
    cells = list(runs.cells())
    say(f"{runs.texts.about}\n{counted(len(cells), 'run')} known to be needed, in {runs.folder}; {foreseen(runs.spec)}")
    if not runs_only:
        findings = _out(file, out) / FINDINGS
        refuse_other(findings, ("data",), runs.texts.about, "findings on another text")
        refuse_other(findings, ("title",), runs.spec.title, "findings of another study")
    others = [_another(file, data, runs.folder, device, imports, jobs) for _ in range(jobs - 1)]
    if jobs > 1:
        torch.set_num_threads(_threads(jobs))

    def made(cell: Cell, run: RunResult, left: int) -> None:
        said = f"failed: {run.failure}" if run.failure else f"{run.validation_loss:.4f} nats, {duration(run.seconds)}"
        say(f"{cell}: {said}; {left:,} left")
        if any(other.poll() == UsageError.exit_status for other in others):
            raise UsageError(
                f"another process of --jobs {jobs} was refused, as it says above; mend that, or leave out --jobs"
            )

    try:
        runs.make_all(made)
    finally:
        for other in others:
            other.terminate()
            other.wait()
    return None if runs_only else _written(runs, file, _out(file, out))


def _out(file: str | Path, out: str | Path | None) -> Path:
    return Path(out) if out else Path("runs") / Path(file).stem


def _folder(file: str | Path, out: str | Path | None, runs_in: str | Path | None) -> Path:
    return Path(runs_in) if runs_in else _out(file, out) / "runs"


def _prepared(file: str | Path, data: str | None, folder: Path, device: str | None, say: Say) -> Runs:
    spec = read_study(file)
    spec = spec if data is None else spec.but(data=data)
    where = choose_device(device)
    options = RunOptions(device=where, validations=0, validation_share=0.01, keep_last=1, plan=False)
    runs = Runs(spec, read_texts(spec, say), folder, options)
    runs.check()
    return runs


def _threads(jobs: int) -> int:
    return max(1, (os.cpu_count() or 1) // jobs)


def _another(
    file: str | Path, data: str | None, folder: Path, device: str | None, imports: Sequence[str | Path], jobs: int
) -> subprocess.Popen[bytes]:
    """Another process that makes runs of the study until none is left."""
    words = [sys.executable, "-m", "anyformer", "study", str(file), "--runs-in", str(folder), "--runs-only"]
    words += ["--data", data] if data is not None else []
    words += ["--device", device] if device is not None else []
    words += [word for path in imports for word in ("--import", str(path))]
    own = {"OMP_NUM_THREADS": str(_threads(jobs)), WORKER_OF: str(os.getpid())}
    return subprocess.Popen(words, env={**os.environ, **own})


def _peak(runs: Runs) -> float:
    assert runs.options.device is not None
    dtype = compute_dtype(runs.spec.recipe.precision)
    return measure.calibrate(runs.options.device, (dtype,)).peak(dtype)


def _written(runs: Runs, file: str | Path, out: Path) -> StudyResult:
    spec, tuning = runs.spec, runs.tuning()
    places = itertools.product(spec.sizes, spec.tokens, spec.models)
    found: dict[tuple[str, int, int], list[RunResult]] = {(model.name, n, d): [] for n, d, model in places}
    for model, size in itertools.product(spec.models, spec.sizes):
        for cell in runs.reported(model.name, size, runs.trials(model, size)[1]):
            if (run := runs.result(cell)) is not None:
                found[cell.model, cell.size, cell.tokens].append(run)
    findings = find(spec, runs.texts.about, found, tuning)
    out.mkdir(parents=True, exist_ok=True)
    page = out / "findings.md"
    command = shlex.join(["anyformer", "study", Path(file).name])
    try:
        replace_file(page, as_markdown(findings, command).encode())
        replace_file(out / FINDINGS, json.dumps(findings.as_json(), indent=1).encode())
        for size, tokens in itertools.product(spec.sizes, spec.tokens):
            _report(runs, out / f"report-{size}-{tokens}.html", size, tokens, found, findings, command)
    except OSError as error:
        raise RunFailed(f"cannot write {page}: {error.strerror or error}; make room, then start again") from None
    return StudyResult(findings, page)


def _report(
    runs: Runs, file: Path, size: int, tokens: int, found: dict[tuple[str, int, int], list[RunResult]],
    findings: Findings, command: str,
) -> None:  # fmt: skip
    """The comparison's report of one size and budget; rates were chosen elsewhere, so it has no table of them."""
    spec = runs.spec
    architectures = {model.name: runs.models[model.name, size] for model in spec.models}
    recipe = spec.recipe_of(spec.models[0], tokens)
    question = ComparisonTask(architectures=architectures, recipe=recipe, seeds=spec.seeds, prompt=None)
    own = [run for (_, n, d), each in found.items() if (n, d) == (size, tokens) for run in each]
    assert runs.options.device is not None
    machine = measure.calibrate(runs.options.device, (compute_dtype(recipe.precision),))
    study = describe(question, own, (), runs.texts.report, corpus=runs.texts.about, command=command, machine=machine)
    said = tuple(f"{one.claim.says}: {one.ruling}. {one.said}." for one in findings.verdicts)
    rates = ", ".join(f"{one.architecture} {one.chosen:g}" for one in findings.tuning if one.size == size)
    notes = (*said, f"Rates chosen on a text and a seed that are not reported: {rates}.") if rates else said
    study = replace(study, title=f"{spec.title}, {spec.sized(size)}, {count(tokens)} tokens", notes=notes)
    write_report(study, file, analyse(study))
