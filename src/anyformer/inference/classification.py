"""What a model with a head for labels says of texts: the class and its probability, a number, or a class for each word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from anyformer.errors import UsageError
from anyformer.inference.opened import Opened, TrainedModel, at_least_one, opened
from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.notebook import ShowsItself
from anyformer.recipe import Examples, Labelled, Precision, RewardModel
from anyformer.spec import ModelSpec
from anyformer.text import LabelledCorpus, LabelledRow, Tokenizer, read_labelled
from anyformer.text.conversations import ExchangeCorpus, of_conversations, read_conversations
from anyformer.text.labelled import EncodedLabelled
from anyformer.text.labelled_files import SUFFIXES
from anyformer.text.parallel import read_lines
from anyformer.text.sources import suffix_of
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.labelled.data import LabelledValidation
from anyformer.training.objectives.labelled.loss import LabelledObjective
from anyformer.training.objectives.objective import LossContext, objective_of
from anyformer.training.objectives.reward_model.scoring import BATCH_TOKENS, scored_exchanges
from anyformer.training.step.device import autocast

VERSION = 1


class Prediction(NamedTuple):
    """What a model says of a text. Of words, each has its own; `label` is None for what was cut away."""

    label: str | None  # the likeliest class; None of a model that says numbers
    probabilities: dict[str, float]  # of all classes; empty of a number
    value: float | None = None  # the number

    def as_json(self) -> dict[str, Any]:
        if self.value is not None:
            return {"value": self.value}
        return {"label": self.label, "probabilities": self.probabilities or None}


CUT = Prediction(None, {})


@dataclass(frozen=True)
class Predictions(ShowsItself):
    """Texts and what a model says of each: one prediction, or one a word."""

    labels: tuple[str, ...]  # the classes there are
    of_words: bool
    rows: tuple[LabelledRow, ...]  # none of conversations
    found: tuple[tuple[Prediction, ...], ...]

    def as_json(self) -> dict[str, Any]:
        results = [self._result(i) for i in range(len(self.found))]
        return {"version": VERSION, "labels": list(self.labels), "results": results}

    def _result(self, i: int) -> dict[str, Any]:
        if not self.of_words:
            return self.found[i][0].as_json()
        each = zip(self.rows[i].texts, self.found[i], strict=True)
        return {"words": [{"word": word, **said.as_json()} for word, said in each]}


def classify(
    model: TrainedModel,
    tokenizer: Tokenizer | str | Path | None = None,
    texts: Sequence[str | tuple[str, str]] = (),
    *,
    longest: int | None = None,
    truncate: bool = False,
    precision: Precision = "float32",
    device: str | None = None,
) -> list[Prediction]:
    """What the model's head for labels says of each text, or pair of texts.

    `model` is a model, or a directory, which has its tokenizer. `model.labels` are the names, where its files have them. A
    text of more than `longest` tokens, by default those of the training or those that the model has positions for, is refused
    (TextError), or cut with `truncate`. Raises UsageError for a model without such a head or without names of classes, and for
    a blank text.
    """
    rows = [LabelledRow((each,) if isinstance(each, str) else tuple(each), None, i) for i, each in enumerate(texts, 1)]
    blank = next((row.line for row in rows if not all(text.strip() for text in row.texts)), None)
    if blank is not None:
        raise UsageError(f"text {blank} is empty; leave it out")
    at_least_one("longest", longest)
    found = opened(model, tokenizer, device=device)
    trained, truncate = found.framing(Labelled, truncate)
    return [
        each[0]
        for each in said_of(found.model, found.tokenizer, rows, "texts", longest or trained, truncate, precision)
    ]


def predict(
    model: TrainedModel,
    texts: Sequence[str] = (),
    *,
    data: str | Path | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    truncate: bool = False,
    precision: Precision = "float32",
    device: str | None = None,
) -> Predictions:
    """What a trained model says of texts, or of those in a file: one a line, labelled text, whose labels are not read, or
    conversations, and prompts with completions, as wholes.

    Of a model that labels words, a text is split at blanks. Raises UsageError unless it is either, for a blank text, and for
    texts that a reward model of ours is to score alone.
    """
    if (data is None) != bool(texts):
        raise UsageError("give either --data, or --text once or several times")
    found = opened(model, tokenizer, device=device)
    words = labelled_objective(found.model.spec).said.labels == "words"
    if data is not None and not words and of_conversations(data):
        return _of_conversations(found, read_conversations(data), truncate, precision)
    if found.recipe is not None and isinstance(found.recipe.objective, RewardModel):
        talk = '{"prompt": "Who is Ada?", "completion": " A mathematician."}'
        raise UsageError(f"this model scores answers to what was said; give --data with messages, or lines as {talk}")
    rows = _rows(Path(data), words) if data is not None else _lines(texts, words)
    where = "--text" if data is None else str(data)
    if not rows:
        raise UsageError(f"{where} is empty; give a file with a text a line")
    blank = next((row.line for row in rows if not row.texts or not all(text.strip() for text in row.texts)), None)
    if blank is not None:
        raise UsageError(f"{where}, line {blank}: the text is empty; leave it out")
    longest, truncate = found.framing(Labelled, truncate)
    said = said_of(found.model, found.tokenizer, rows, where, longest, truncate, precision)
    return Predictions(tuple(found.model.labels or ()), words, tuple(rows), tuple(map(tuple, said)))


def _of_conversations(found: Opened, corpus: ExchangeCorpus, truncate: bool, precision: Precision) -> Predictions:
    """What the model says of conversations as wholes."""
    names = () if labelled_objective(found.model.spec).said.labels == "numbers" else label_names(found.model)
    longest, truncate = found.framing(Examples, truncate)
    longest = longest or longest_of(found.model.spec)
    with autocast(precision, next(found.model.parameters()).device):
        scores = scored_exchanges(found.model, found.tokenizer, corpus, longest=longest, truncate=truncate)
    said = tuple((CUT if np.isnan(row).any() else _said(row, names),) for row in scores)
    return Predictions(names, False, (), said)


def _lines(lines: Sequence[str], words: bool) -> list[LabelledRow]:
    return [LabelledRow(tuple(line.split()) if words else (line,), None, i) for i, line in enumerate(lines, 1)]


def _rows(data: Path, words: bool) -> list[LabelledRow]:
    if suffix_of(data) not in SUFFIXES:
        return _lines(read_lines(data), words)
    corpus = read_labelled(data, unlabelled=True)
    if (corpus.kind == "words") != words:
        wanted = "words (tokens)" if words else "texts (text, and text_pair)"
        raise UsageError(f"{data}: this model says something of {wanted}, and what is given is none")
    return list(corpus.rows)


def said_of(
    model: Transformer,
    tokenizer: Tokenizer,
    rows: Sequence[LabelledRow],
    where: str,
    longest: int | None = None,
    truncate: bool = False,
    precision: Precision = "float32",
) -> list[list[Prediction]]:
    """What the model says of each example: one answer, or one a word; `where` names the texts in errors."""
    if not rows:
        return []
    objective = labelled_objective(model.spec)
    words = objective.said.labels == "words"
    if not words and any(len(row.texts) > 2 for row in rows):
        raise UsageError("this model says something of a text, or of a pair; what is given are words")
    names = () if objective.said.labels == "numbers" else label_names(model)
    corpus = LabelledCorpus(tuple(rows), "words" if words else "classes", where)
    longest = longest or longest_of(model.spec)
    examples = EncodedLabelled(corpus, tokenizer, (), longest, truncate=truncate, remedy="split it")
    found: list[list[Prediction]] = [[] for _ in rows]
    for numbers, scores in scored(model, objective, LabelledValidation(examples), precision):
        for number, row in zip(numbers.tolist(), scores, strict=True):
            if words:
                found[number] = [_said(row[at], names) if at >= 0 else CUT for at in examples.inputs[number].firsts]
            else:
                found[number] = [_said(row, names)]
    return found


def _said(scores: np.ndarray, names: Sequence[str]) -> Prediction:
    if not names:
        return Prediction(None, {}, float(scores[0]))
    odds = np.exp(scores.astype(np.float64) - scores.max())
    shares = (odds / odds.sum()).tolist()
    return Prediction(names[int(scores.argmax())], dict(zip(names, shares, strict=True)))


def labelled_objective(spec: ModelSpec) -> LabelledObjective:
    """What the model's first head was trained for. Raises UsageError where that says no labels."""
    said = usual(spec)
    objective = objective_of(said, spec) if said.reads == "labelled" else None
    if not isinstance(objective, LabelledObjective):
        raise UsageError(
            "this model has no head for labels; train it on labelled text: "
            "`anyformer train SPEC --objective classification --data FILE --out RUN`"
        )
    return objective


def label_names(model: Transformer) -> tuple[str, ...]:
    """The names of the model's classes. Raises UsageError where nobody named them, or more or fewer than there are."""
    if model.labels is None:
        raise UsageError(
            "nothing names the classes of this model, or it says several at once; set model.labels, or id2label and "
            "problem_type in its config.json"
        )
    table = model.spec.heads[0].table
    if table is not None and table.rows != len(model.labels):
        raise UsageError(f"model.labels has {len(model.labels)} names, and the model {table.rows} classes; name each")
    return model.labels


def longest_of(spec: ModelSpec) -> int | None:
    """The most tokens that a model has positions for, or was published for; None where nothing says so."""
    return min((n for n in (learned_positions(spec), spec.context) if n), default=None)


def scored(
    model: Transformer, objective: LabelledObjective, examples: LabelledValidation, precision: Precision = "float32"
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(numbers of examples, what the head gives them in float32: [batch, rows], of words [batch, token, rows])."""
    device = next(model.parameters()).device
    for rows, source in examples.batches(BATCH_TOKENS):
        with torch.no_grad(), autocast(precision, device):
            scores = objective.scores(LossContext(model, model.head(), device), rows)
        yield source[:, 0], scores.cpu().numpy()
