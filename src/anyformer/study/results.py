"""What a comparison leaves behind, as data: its runs and everything needed to read, judge and repeat them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from anyformer.errors import UsageError
from anyformer.study.encoding import decode, encode
from anyformer.study.windows import WindowLoss
from anyformer.training.run.evaluation import DocumentLoss, Evaluation, perplexity_of

FORMAT = "anyformer-study"
VERSION = 2  # 1 had bits_per_byte for what is score and loss of a baseline, and no other scores


class LossPoint(NamedTuple):
    """One reading of a loss in nats per token; `tokens`, `flops` and `seconds` are counted from the run's start."""

    step: int
    tokens: int
    flops: float
    seconds: float
    loss: float


@dataclass(frozen=True)
class Score:
    """One way to judge."""

    name: str  # as a key
    words: str
    column: str  # what a table's column is called, in two lines
    sums: str  # what is over what
    higher: bool  # whether more is better
    better: str  # what the better model does, before the other's name
    worse: str
    over: Literal["nbytes", "tokens"]  # of a document
    unit: float | None  # in nats; None: labels that were said rightly

    def parts(self, documents: Sequence[DocumentLoss], right: Sequence[int] = ()) -> tuple[list[float], list[float]]:
        """The numerators and denominators, one a document; `right` are the labels of each that were said rightly."""
        above = [float(n) for n in right] if self.unit is None else [one.nats / self.unit for one in documents]
        return above, [float(getattr(one, self.over)) for one in documents]

    def is_better(self, difference: float) -> bool:
        """Whether this much more is better."""
        return difference > 0 if self.higher else difference < 0


BITS = Score(
    "bits_per_byte", "bits per byte", "bits per\nbyte", "total bits over total bytes", False,
    "needs fewer bits than", "needs more bits than", "nbytes", math.log(2),
)  # fmt: skip
ACCURACY = Score(
    "accuracy", "accuracy", "accuracy\n", "labels said rightly over all labels", True,
    "is right more often than", "is right less often than", "tokens", None,
)  # fmt: skip
LOSS = Score(
    "loss", "loss", "loss\n", "total loss over all labels", False,
    "has a lower loss than", "has a higher loss than", "tokens", 1.0,
)  # fmt: skip
SCORES: Mapping[str, Score] = {score.name: score for score in (BITS, ACCURACY, LOSS)}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One architecture trained once.

    Validation loss, perplexity and bits per byte follow from `documents`, so they cannot disagree; they are None for a
    run that did not get that far. `documents` are the same texts in the same order for every run of a study.
    """

    architecture: str
    seed: int
    learning_rate: float
    n_params: int
    n_params_embedding: int  # tables of tokens, positions and segments; a tied output table counts once, here
    flops_per_token: float  # training (forward and backward), under the study's `flops_convention`
    tokens_seen: int
    tokens_per_second: float
    seconds: float  # training, without compilation and validation
    curve: tuple[LossPoint, ...] = ()  # training loss
    validation: tuple[LossPoint, ...] = ()
    early_loss: float | None = None  # the study's `early` says of what, and when
    documents: tuple[DocumentLoss, ...] = ()
    right: tuple[int, ...] = ()  # of each document: labels that were said rightly; none where that is not counted
    lengths: tuple[int, ...] = ()  # of windows by which the validation text was read too
    windows: tuple[WindowLoss, ...] = ()  # of those of `lengths` that the model has positions for
    sample: str = ""
    prompt: str = ""  # that the sample continues
    failure: str | None = None  # one line; None if the run finished

    def __post_init__(self) -> None:
        if self.failure is None and not self.documents:
            raise UsageError(f"run {self.name} finished without validation documents; give them, or say what failed")
        read = Evaluation(self.documents)
        if self.documents and (read.tokens <= 0 or read.nbytes <= 0):
            raise UsageError(f"run {self.name} was validated on {read.tokens} tokens, {read.nbytes} bytes; need some")
        if self.right and len(self.right) != len(self.documents):
            raise UsageError(
                f"run {self.name} has {len(self.documents)} documents and {len(self.right)} counts of right"
            )

    @property
    def name(self) -> str:
        return f"{self.architecture}, seed {self.seed}"

    @property
    def n_params_non_embedding(self) -> int:
        return self.n_params - self.n_params_embedding

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens_seen

    @property
    def finished(self) -> bool:
        return self.failure is None

    @property
    def validation_loss(self) -> float | None:
        """Nats per token over all validation documents."""
        return self.scored(LOSS)

    @property
    def perplexity(self) -> float | None:
        """exp(nats per token): comparable only between runs with one tokenizer."""
        loss = self.validation_loss
        return None if loss is None else perplexity_of(loss)

    @property
    def bits_per_byte(self) -> float | None:
        return self.scored(BITS)

    @property
    def accuracy(self) -> float | None:
        """Share of the labels that were said rightly; None where that is not counted."""
        return self.scored(ACCURACY)

    def scored(self, score: Score) -> float | None:
        """What a study judges by; None where that was not counted."""
        above, below = score.parts(self.documents, self.right)
        return math.fsum(above) / math.fsum(below) if above else None


@dataclass(frozen=True, kw_only=True)
class Data:
    """What was trained and validated on."""

    description: str
    fingerprint: str
    train_tokens: int
    validation_documents: int
    validation_tokens: int
    validation_nbytes: int


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a predictor that is no network reaches on the validation text."""

    name: str  # "unigram", "uniform", "5-gram (Kneser–Ney)"
    score: float  # what the study judges by
    loss: float  # in the study's unit


@dataclass(frozen=True, kw_only=True)
class StudyMachine:
    description: str  # the processor or accelerator
    threads: int
    peak_flops_per_second: float | None = None  # measured with large matrix products


@dataclass(frozen=True, kw_only=True)
class Trial:
    learning_rate: float
    validation_loss: float | None  # the mean over seeds; None if the trial failed
    seeds: tuple[float | None, ...] = ()  # the losses of several seeds, where there are
    score: float | None = None  # what the study judges by, where that is not the loss


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The learning rates that one architecture was tried with, and the one its runs use."""

    architecture: str
    size: int | None = None  # parameters, of a study of several sizes
    trials: tuple[Trial, ...]
    chosen: float

    @property
    def at_the_end(self) -> bool:
        """Whether the best loss is that of the lowest or the highest rate tried, so that one beyond may be better."""
        rates = [one.learning_rate for one in self.trials]
        losses = {one.learning_rate: one.validation_loss for one in self.trials if one.validation_loss is not None}
        return bool(losses) and min(losses, key=losses.__getitem__) in (min(rates), max(rates))


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison: `runs` in the order of the table; the others are compared to the first run's architecture."""

    title: str
    command: str
    date: str  # ISO 8601
    data: Data
    tokenizer: str
    tokenizer_fingerprint: str = ""
    flops_convention: str
    early: str  # what `early_loss` is: "validation loss after 25 % of the tokens"
    machine: StudyMachine
    runs: tuple[RunResult, ...]
    score: str = "bits_per_byte"  # what is judged by: a name among SCORES
    unit: str = "nats per token"  # of losses
    counted: str = "token"  # what is predicted: "token", "label"
    documents: str = "documents"  # what the validation text consists of: "documents", "examples"
    baselines: tuple[Baseline, ...] = ()
    tuning: tuple[Tuning, ...] = ()
    versions: tuple[tuple[str, ...], ...] = ()  # pairs of name and version
    settings: tuple[tuple[str, ...], ...] = ()  # pairs of name and value: batch, context, schedule … of all runs
    prompt: str = ""  # what every sample continues
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.runs:
            raise UsageError("a study needs at least one run")
        if self.score not in SCORES:
            raise UsageError(f"a study is not judged by {self.score!r}; there are {', '.join(SCORES)}")
        if self.score == "accuracy" and (unknown := [one.name for one in self.runs if one.documents and not one.right]):
            raise UsageError(f"run {unknown[0]} does not say which labels were right, so it has no accuracy")
        lengths = {tuple(document.nbytes for document in run.documents) for run in self.runs if run.documents}
        if len(lengths) > 1:
            raise UsageError("the runs were validated on different documents; validate all of them on the same ones")
        names = [run.name for run in self.runs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"the study holds two runs '{twice}'; keep one for each architecture and seed")

    @property
    def peak_flops_per_second(self) -> float | None:
        """The machine's; None where none was measured, or one that a run passes: it was measured while the machine was busy."""
        peak = self.machine.peak_flops_per_second
        reached = max((run.tokens_per_second * run.flops_per_token for run in self.runs), default=0.0)
        return None if peak is None or reached > peak else peak

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.architecture for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    def of(self, architecture: str) -> tuple[RunResult, ...]:
        return tuple(run for run in self.runs if run.architecture == architecture)

    @property
    def judged(self) -> Score:
        """What is judged by; a loss is named by its unit."""
        score = SCORES[self.score]
        return replace(score, words=self.unit) if self.score == "loss" else score

    def to_json(self) -> str:
        """One JSON object: `format`, `version` and this class's fields; points and documents are arrays of values."""
        return json.dumps({"format": FORMAT, "version": VERSION, **encode(self)}, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Study:
        """Raises UsageError if `text` is no study, or one of another version."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"not a study: no valid JSON at line {error.lineno} ({error.msg})") from error
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise UsageError(f'not a study: the file has no "format": "{FORMAT}"')
        if (version := data.pop("version", None)) != VERSION:
            raise UsageError(
                f"a study of version {version}, this program reads version {VERSION}; compare again to get one"
            )
        return decode(Study, data, "study")

    def to_csv(self) -> str:
        """One row a run, a header first; empty where a failed run has no value."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        shown = {"perplexity": BITS.name, "bits_per_byte": BITS.name, "accuracy": ACCURACY.name}
        columns = [column for column in CSV_COLUMNS if shown.get(column, self.score) == self.score]
        writer.writerow(columns)
        writer.writerows([_cell(getattr(run, column)) for column in columns] for run in self.runs)
        return out.getvalue()


CSV_COLUMNS = (
    "architecture", "seed", "learning_rate", "n_params", "n_params_embedding", "n_params_non_embedding",
    "flops_per_token", "flops", "tokens_seen", "tokens_per_second", "seconds", "early_loss", "validation_loss",
    "perplexity", "bits_per_byte", "accuracy", "failure",
)  # fmt: skip


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
