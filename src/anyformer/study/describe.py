"""A comparison written up: its runs beside the data, the machine, the settings and the versions that they share."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

import numpy as np

from anyformer.measure.calibrate import Machine as Calibrated
from anyformer.recipe import Recipe
from anyformer.spec import Spec
from anyformer.study.compare import EARLY_WORDS, ComparisonTask
from anyformer.study.results import BITS, Baseline, Data, RunResult, Study, StudyMachine, Tuning
from anyformer.text import EncodedCorpus
from anyformer.text.ngrams import fit_ngrams
from anyformer.training.checkpoint.provenance import provenance
from anyformer.training.data.feed import TrainingData
from anyformer.training.data.text import TextData
from anyformer.training.objectives.labelled.data import LabelledData
from anyformer.training.run.baseline import trivial_loss
from anyformer.training.step.device import compute_dtype

ORDER = 5  # of n-grams
CONVENTION = (
    "exact-causal: matrix products alone, 2 FLOPs a multiply-add, the pairs that the mask shows, ×3 for training"
)


def describe(
    question: ComparisonTask,
    runs: Sequence[RunResult],
    tuning: Sequence[Tuning],
    data: TrainingData,
    *,
    corpus: str,
    command: str,
    machine: Calibrated,
) -> Study:
    """The study. `corpus` says in words what text it was; `machine` has been measured in the recipe's precision."""
    peak = machine.peak(compute_dtype(question.recipe.precision))
    recipe, labelled = question.recipe, isinstance(data, LabelledData)
    what = " and ".join((", ".join(question.architectures)).rsplit(", ", 1))
    return Study(
        title=f"{what} on {corpus.partition(': ')[0]}",
        command=command,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        data=_data(corpus, data, recipe, runs),
        tokenizer=f"{data.tokenizer.kind if data.tokenizer else 'unknown'}, {data.vocab_size:,} tokens",
        tokenizer_fingerprint=data.tokenizer.fingerprint if data.tokenizer else "",
        flops_convention=CONVENTION,
        early=EARLY_WORDS,
        machine=StudyMachine(description=machine.processor, threads=machine.threads, peak_flops_per_second=peak),
        runs=tuple(runs),
        score=question.score.name,
        unit=recipe.objective.unit.replace(" a ", " per "),
        counted="label" if labelled else "token",
        documents="examples" if labelled else "documents",
        baselines=_baselines(question, data),
        tuning=tuple(tuning),
        versions=tuple((name, str(version)) for name, version in provenance()["versions"].items()),
        settings=(*_settings(recipe), ("equal", question.equal)),
        prompt=(question.prompt or "") if question.score == BITS else "",
        notes=_notes(question),
    )


def _data(corpus: str, data: TrainingData, recipe: Recipe, runs: Sequence[RunResult]) -> Data:
    validation = data.validation(recipe)
    assert validation is not None
    if isinstance(data, TextData):
        n_tokens = data.train.predictions
    else:
        assert isinstance(data, LabelledData)
        labels = data.train.counts().total() if data.train.kind == "words" else len(data.train.rows)
        n_tokens = round(labels / data.predicted_share(recipe))
    documents = next((run.documents for run in runs if run.documents), ())
    return Data(
        description=corpus,
        fingerprint=data.fingerprint,
        train_tokens=n_tokens,
        validation_documents=len(validation.document_nbytes),
        validation_tokens=sum(one.tokens for one in documents),
        validation_nbytes=int(validation.document_nbytes.sum()),
    )


def _baselines(question: ComparisonTask, data: TrainingData) -> tuple[Baseline, ...]:
    """What predictors that are no networks reach on the validation text: the floor under every model."""
    if question.score == BITS and isinstance(data, TextData) and data.held_out is not None:
        return of_text(data.train, data.held_out, question.recipe.tokens)
    return _of_objective(data, question.recipe)


def of_text(train: EncodedCorpus, held_out: EncodedCorpus, most_tokens: int) -> tuple[Baseline, ...]:
    """Predictors in bits per byte of what models predict: by the unigram (counts plus one), evenly, by n-grams.

    N-grams read as many tokens as a run does, the first ones, or the whole text where that is shorter.
    """
    counts = np.bincount(predicted(train), minlength=train.vocab_size) + 1.0
    bits = -np.log2(counts / counts.sum())
    tokens = predicted(held_out)
    found = {"unigram": float(bits[tokens].sum()), "uniform": len(tokens) * math.log2(train.vocab_size)}
    grams = fit_ngrams(train, ORDER, most_tokens=most_tokens)
    found[f"{ORDER}-gram (Kneser–Ney)"] = float(grams.nats(held_out).sum()) / math.log(2)
    return tuple(
        Baseline(name=name, score=total / held_out.nbytes, loss=total * math.log(2) / len(tokens))
        for name, total in found.items()
    )


def _of_objective(data: TrainingData, recipe: Recipe) -> tuple[Baseline, ...]:
    """What the recipe's objective is measured against; of classes, with the accuracy of the commonest one."""
    validation = data.validation(recipe)
    assert validation is not None
    loss = trivial_loss(recipe, data, validation)
    if not isinstance(data, LabelledData) or not data.labels:
        return (Baseline(name=recipe.objective.guess, score=loss, loss=loss),)
    assert data.held_out is not None
    commonest, unseen = max(data.train.counts().items(), key=lambda one: one[1])[0], data.held_out.counts()
    return (Baseline(name="the commonest label", score=unseen[commonest] / unseen.total(), loss=loss),)


def predicted(corpus: EncodedCorpus) -> np.ndarray:
    """The tokens that are predicted: all but the first of each document."""
    first = np.zeros(len(corpus.tokens), dtype=bool)
    first[corpus.offsets[:-1]] = True
    return np.asarray(corpus.tokens)[~first].astype(np.int64)


def _settings(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    schedule = ", then ".join(_words(piece) for piece in recipe.schedule)
    return (
        ("tokens a run", f"{recipe.tokens:,}"),
        ("tokens a batch", f"{recipe.batch_tokens:,}"),
        ("tokens a row", f"{recipe.seq_len:,}"),
        ("optimiser", _words(recipe.optimizer)),
        ("schedule", schedule),
        ("clipping", "none" if recipe.clip is None else f"global norm {recipe.clip:g}"),
        ("precision", recipe.precision),
        ("objective", _words(recipe.objective)),
    )


def _words(spec: Spec) -> str:
    fields = (f"{name} {value:g}" for name, value in spec.values().items() if isinstance(value, float | int))
    return " ".join((spec.kind, *fields))


def _notes(question: ComparisonTask) -> tuple[str, ...]:
    if len(question.learning_rates) > 1:
        return ("The learning rate was chosen on the validation text that is reported, with the first seed.",)
    return (
        "No learning rate was tuned: all architectures were trained with the same one, which may suit some better.",
    )
