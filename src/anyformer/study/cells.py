"""The runs of a study: which there are, which are left, and making them, by any number of processes in any order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, log2
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from anyformer.disk.lock import Lock, is_held
from anyformer.errors import TextError, UsageError, errors_of
from anyformer.spec import ModelSpec, specification
from anyformer.study.compare import ComparisonTask, at_size, check, directory_of, identity, keep, kept, rank, run_one
from anyformer.study.results import LOSS, RunResult, Trial, Tuning
from anyformer.study.specification import UNREPORTED, ModelEntry, StudySpec
from anyformer.text import encode_corpus
from anyformer.training.data.text import TextData
from anyformer.training.objectives.architecture import usual
from anyformer.training.prepare import Say, Sources, read_data
from anyformer.training.run import Job, RunOptions
from anyformer.training.run.progress import Watcher

EXTENSIONS = 3  # times that a grid of rates goes on by a factor of 2 where its end is the best
SAVES = 4  # of a run, from the last of which it goes on where it was killed
PATIENCE_SECONDS = 2.0  # between looks for runs that other processes have made


class Cell(NamedTuple):
    """One run: of a model at a size and a budget, at a rate (None: its recipe's), with a seed."""

    model: str
    size: int
    tokens: int
    rate: float | None
    seed: int

    @property
    def chooses(self) -> bool:
        """Whether it is one of those by which a rate is chosen."""
        return not 0 < self.seed <= UNREPORTED

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", lr {self.rate:g}"
        seed = (f", seed {self.seed}" if self.seed else "") + (", to choose the rate" if self.chooses else "")
        return f"{self.model}, size {self.size:,}, {self.tokens:,} tokens{rate}{seed}"


@dataclass(frozen=True)
class Texts:
    """The text of a study in three parts."""

    select: TextData  # training, and what rates are chosen by
    report: TextData  # training, and what is reported
    about: str


def read_texts(spec: StudySpec, say: Say) -> Texts:
    """The text, split twice and tokenized. Raises TextError, UsageError."""
    source = Sources(spec.data)
    corpus = source.corpus()
    with errors_of("report", TextError):
        rest, _ = corpus.split(spec.report)
    with errors_of("select", TextError):
        halves = rest.split(spec.select, seed=1)
    found, about = read_data(spec.recipe, source, spec.report, vocab_size=spec.vocab_size, say=say)
    assert isinstance(found, TextData)
    assert found.tokenizer is not None
    train, select = (encode_corpus(each, found.tokenizer) for each in halves)
    return Texts(
        TextData(train, select, found.tokenizer),
        TextData(train, found.held_out, found.tokenizer),
        f"{spec.data}: {about}",
    )


@dataclass
class Runs:
    """The runs of a study in a folder, found, counted and made. It may hold other studies' runs too: equal ones are made once."""

    spec: StudySpec
    texts: Texts
    folder: Path
    options: RunOptions
    _known: dict[Cell, RunResult] = field(default_factory=dict)

    @cached_property
    def models(self) -> dict[tuple[str, int], ModelSpec]:
        """Each model at each size. Raises SpecError for what cannot be."""
        return {(model.name, size): self._sized(model, size) for model in self.spec.models for size in self.spec.sizes}

    def _sized(self, model: ModelEntry, size: int) -> ModelSpec:
        recipe = model.recipe or self.spec.recipe
        with errors_of(model.name):
            given = specification(model.architecture)
            if (suits := usual(given)).whole:
                return at_size(given, round(size * model.times), self.spec.count, recipe, self.texts.report)
        what = f"this architecture learns by {suits.kind}, which does not score a text"
        raise UsageError(f"{model.name}: a study is of language models, and {what}; leave it out")

    def check(self) -> None:
        """Raise, before anything runs, what would stop a run."""
        for model in self.spec.models:
            trials = (cell for size in self.spec.sizes for cell in self.trials(model, size)[0])
            for cell in (*trials, Cell(model.name, self.spec.sizes[-1], self.spec.tokens[-1], None, 1)):
                check(self.question(cell), self.data(cell))

    def data(self, cell: Cell) -> TextData:
        return self.texts.select if cell.chooses else self.texts.report

    def question(self, cell: Cell) -> ComparisonTask:
        """What one run answers."""
        model = next(each for each in self.spec.models if each.name == cell.model)
        recipe = self.spec.recipe_of(model, cell.tokens)
        lengths = () if cell.chooses else self.spec.lengths
        architectures = {cell.model: self.models[cell.model, cell.size]}
        return ComparisonTask(architectures=architectures, recipe=recipe, prompt=None, lengths=lengths)

    def flops(self, cell: Cell) -> float:
        """The FLOPs of a run's training."""
        question = self.question(cell)
        tokens = question.recipe.steps * question.recipe.batch_tokens
        return question.flops(self.models[cell.model, cell.size], self.data(cell)) * tokens

    def trials(self, model: ModelEntry, size: int) -> tuple[list[Cell], float | None, bool]:
        """(runs that choose the rate at a size, the rate, whether it is chosen); a grid whose end is the best goes on."""
        rates = [*self.spec.rates_of(model)]
        if len(rates) < 2:
            return [], next(iter(rates), None), True
        tokens, left = self.spec.rate_tokens or self.spec.tokens[0], EXTENSIONS
        while True:
            cells = [Cell(model.name, size, tokens, rate, seed) for rate in rates for seed in self.spec.choosing]
            tried = self._tried(cells)
            if tried is None:
                return cells, None, False
            losses = {rate: fmean(rank(run, LOSS)[0] for run in runs) for rate, runs in tried.items()}
            best = min(rates, key=losses.__getitem__)
            if best not in (rates[0], rates[-1]) or not left:
                if self.spec.rate_between:
                    return cells, bottom(losses, best), True
                tied = losses[best] + self.spec.rate_tie
                return cells, next(rate for rate in rates if losses[rate] <= tied), True
            rates = [best / 2, *rates] if best == rates[0] else [*rates, best * 2]
            left -= 1

    def _tried(self, cells: Sequence[Cell]) -> dict[float, list[RunResult]] | None:
        """The runs that choose a rate, by rate, seed by seed; None as long as one is missing."""
        found: dict[float, list[RunResult]] = {}
        for cell in cells:
            run = self.result(cell)
            if run is None or cell.rate is None:
                return None
            found.setdefault(cell.rate, []).append(run)
        return found

    def cells(self, *, ahead: bool = False) -> Iterator[Cell]:
        """All runs that are known to be needed: those that choose a model's rate until it is chosen, then all of its own.

        `ahead`: all of its own before, too, with the first rate of its grid, which goes on where it must.
        """
        for model, size in itertools.product(self.spec.models, self.spec.sizes):
            cells, rate, chosen = self.trials(model, size)
            yield from cells
            if chosen or ahead:
                yield from self.reported(model.name, size, rate if chosen else self.spec.rates_of(model)[0])

    def reported(self, name: str, size: int, rate: float | None) -> Iterator[Cell]:
        """The runs of a model that are reported at a size, seed by seed."""
        for seed in range(1, self.spec.seeds + 1):
            for tokens in self.spec.tokens:
                yield Cell(name, size, tokens, rate, seed)

    def tuning(self) -> tuple[Tuning, ...]:
        """What was tried to choose each rate."""
        found = []
        for model, size in itertools.product(self.spec.models, self.spec.sizes):
            cells, rate, _ = self.trials(model, size)
            tried = self._tried(cells)
            if tried and rate is not None:
                losses = {lr: tuple(run.validation_loss for run in runs) for lr, runs in tried.items()}
                trials = tuple(
                    Trial(learning_rate=lr, validation_loss=_mean(each), seeds=each) for lr, each in losses.items()
                )
                found.append(Tuning(architecture=model.name, size=size, trials=trials, chosen=rate))
        return tuple(found)

    def job(self, cell: Cell) -> Job:
        return self.question(cell).job(cell.model, cell.rate, cell.seed, self.data(cell))

    def identity(self, cell: Cell) -> str:
        return identity(self.job(cell), cell.seed)

    def directory(self, cell: Cell) -> Path:
        return directory_of(self.folder, cell.model, self.identity(cell))

    def _failed(self, cell: Cell) -> Path:
        return self.folder / "failed" / f"{self.identity(cell)}.json"

    def result(self, cell: Cell) -> RunResult | None:
        """What is kept of a run, be it that it failed; None: it has not run."""
        if cell not in self._known:
            if (failed := self._failed(cell)).is_file():
                known = kept(failed, "; delete it: the run is then tried again")
                self._known[cell] = replace(known, architecture=cell.model)
            elif (self.directory(cell) / "result.json").is_file():
                self._known[cell] = self._run(cell)
        return self._known.get(cell)

    def _run(self, cell: Cell) -> RunResult:
        question = self.question(cell)
        options = replace(self.options, save_every=max(1, question.recipe.steps // SAVES))
        return run_one(question, self.job(cell), cell.seed, self.folder, options, lambda _: Watcher())

    def make(self, cell: Cell) -> RunResult | None:
        """The run, made here; None where another process makes it. A failure is kept, and is not tried again."""
        place = self.folder / "locks" / self.identity(cell)
        place.parent.mkdir(parents=True, exist_ok=True)
        if is_held(place):
            return None
        try:
            lock = Lock(place, self.directory(cell))
        except UsageError:
            return None
        try:
            if (known := self.result(cell)) is not None:
                return known
            run = self._run(cell)
            if run.failure is not None:
                (self.folder / "failed").mkdir(exist_ok=True)
                keep(run, self._failed(cell))
            self._known[cell] = run
            return run
        finally:
            lock.release()

    def make_all(self, made: Callable[[Cell, RunResult, int], None], wait: Callable[[], None] | None = None) -> None:
        """Make runs until none is left, with whoever else does; `made` is told of each and how many are left."""
        pause = wait or (lambda: time.sleep(PATIENCE_SECONDS))
        while left := [cell for cell in self.cells() if self.result(cell) is None]:
            for cell in left:
                if (run := self.make(cell)) is not None:
                    left_now = sum(self.result(each) is None for each in self.cells())
                    made(cell, run, left_now)
                    break  # others may have gone on meanwhile, and a rate may be chosen now
            else:
                pause()


def bottom(losses: Mapping[float, float], best: float) -> float:
    """The learning rate at the bottom of the parabola through the losses of the best and its neighbours over their logarithms.

    To a quarter of a factor of two, so that equal runs of several models stay equal. At an end of the grid, or where a
    neighbour failed, the best itself.
    """
    at = sorted(losses)
    here = at.index(best)
    near = at[max(here - 1, 0) : here + 2]
    if len(near) < 3 or not all(isfinite(losses[rate]) for rate in near):
        return best
    below, above = (log2(rate / best) for rate in (near[0], near[2]))
    falls, rises = (losses[near[0]] - losses[best]) / -below, (losses[near[2]] - losses[best]) / above
    if falls + rises == 0:
        return best
    # Its slope is -falls halfway below and rises halfway above, and a parabola's slope is a line.
    flat = (below * rises + above * falls) / (falls + rises) / 2
    return float(f"{best * 2 ** (round(4 * flat) / 4):.3g}")


def _mean(losses: Sequence[float | None]) -> float | None:
    """Of losses, None if one is missing."""
    found = [loss for loss in losses if loss is not None]
    return fmean(found) if len(found) == len(losses) else None
