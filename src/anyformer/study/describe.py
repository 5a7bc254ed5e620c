"""A comparison written up: its runs beside the data, the machine, the settings and the versions that they share."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from anyformer.measure.calibrate import Machine as Calibrated
from anyformer.recipe import Recipe
from anyformer.spec import Spec
from anyformer.study.baselines import baselines
from anyformer.study.compare import EARLY_WORDS, Question
from anyformer.study.results import Data, Machine, RunResult, Study, Tuning
from anyformer.train.data import TextData
from anyformer.train.provenance import provenance

CONVENTION = (
    "exact-causal: matrix products alone, 2 FLOPs a multiply-add, the pairs that the mask shows, ×3 for training"
)


def describe(
    question: Question,
    runs: Sequence[RunResult],
    tuning: Sequence[Tuning],
    data: TextData,
    *,
    corpus: str,
    command: str,
    machine: Calibrated,
    peak: float,
) -> Study:
    """Return the study. `corpus` says in words what text it was; `peak` is the machine's, in FLOPs a second."""
    assert data.held_out is not None
    recipe = question.recipe
    what = " and ".join((", ".join(question.architectures)).rsplit(", ", 1))
    return Study(
        title=f"{what} on {corpus.split(':')[0]}",
        command=command,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        data=Data(
            description=corpus,
            fingerprint=data.fingerprint,
            train_tokens=data.train.predictions,
            validation_documents=data.held_out.n_documents,
            validation_tokens=data.held_out.predictions,
            validation_nbytes=data.held_out.nbytes,
        ),
        tokenizer=f"{data.tokenizer.kind if data.tokenizer else 'unknown'}, {data.vocab_size:,} tokens",
        tokenizer_fingerprint=data.tokenizer.fingerprint if data.tokenizer else "",
        flops_convention=CONVENTION,
        early=EARLY_WORDS,
        machine=Machine(description=machine.processor, threads=machine.threads, peak_flops_per_second=peak),
        runs=tuple(runs),
        baselines=baselines(data.train, data.held_out),
        tuning=tuple(tuning),
        versions=tuple((name, str(version)) for name, version in provenance()["versions"].items()),
        settings=(*_settings(recipe), ("equal", question.equal)),
        prompt=question.prompt,
        notes=_notes(question),
    )


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
    )


def _words(spec: Spec) -> str:
    fields = (f"{name} {value:g}" for name, value in spec.values().items() if isinstance(value, float | int))
    return " ".join((spec.kind, *fields))


def _notes(question: Question) -> tuple[str, ...]:
    if len(question.learning_rates) > 1:
        return ("The learning rate was chosen on the validation text that is reported, with the first seed.",)
    return (
        "No learning rate was tuned: all architectures were trained with the same one, which may suit some better.",
    )
