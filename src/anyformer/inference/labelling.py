"""What a model with a head for labels says of texts: the class and its probability, a number, or a class for each word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anyformer.errors import UsageError
from anyformer.inference.scores import label_names, labelled_objective, longest_of, scored
from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.text import LabelledCorpus, LabelledRow, Tokenizer
from anyformer.text.encoded_labelled import EncodedLabelled
from anyformer.training.objectives.labelled.data import LabelledValidation


class Prediction(NamedTuple):
    """What a model says of a text. Of words, each has its own; `label` is None for what was cut away."""

    label: str | None  # the likeliest class; None of a model that says numbers
    probabilities: dict[str, float]  # of all classes; empty of a number
    value: float | None = None  # the number


def classify(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[str | tuple[str, str]],
    *,
    longest: int | None = None,
    truncate: bool = False,
    precision: Precision = "float32",
) -> list[Prediction]:
    """What the model's head for labels says of each text, or pair of texts.

    `model.labels` are the names, where its files have them. A text of more than `longest` tokens, by default those that the
    model has positions for, is refused (TextError), or cut with `truncate`. Raises UsageError for a model without such a head
    or without names of classes, and for a blank text.
    """
    rows = [LabelledRow((each,) if isinstance(each, str) else tuple(each), None, i) for i, each in enumerate(texts, 1)]
    blank = next((row.line for row in rows if not all(text.strip() for text in row.texts)), None)
    if blank is not None:
        raise UsageError(f"text {blank} is empty; leave it out")
    found = said_of(model, tokenizer, rows, "texts", longest=longest, truncate=truncate, precision=precision)
    return [answers[0] for answers in found]


def classify_words(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[str]],
    *,
    longest: int | None = None,
    truncate: bool = False,
    precision: Precision = "float32",
) -> list[list[Prediction]]:
    """What the model says of each word of each text; see `classify`."""
    rows = [LabelledRow(tuple(words), None, i) for i, words in enumerate(texts, 1)]
    return said_of(model, tokenizer, rows, "texts", longest=longest, truncate=truncate, precision=precision)


def said_of(
    model: Transformer,
    tokenizer: Tokenizer,
    rows: Sequence[LabelledRow],
    where: str,
    *,
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
    examples = EncodedLabelled(corpus, tokenizer, (), longest or longest_of(model.spec), truncate=truncate)
    found: list[list[Prediction]] = [[] for _ in rows]
    for numbers, scores in scored(model, objective, LabelledValidation(examples), precision):
        for number, row in zip(numbers.tolist(), scores, strict=True):
            if words:
                found[number] = [_said(row[at], names) if at >= 0 else CUT for at in examples.inputs[number].firsts]
            else:
                found[number] = [_said(row, names)]
    return found


CUT = Prediction(None, {})


def _said(scores: np.ndarray, names: Sequence[str]) -> Prediction:
    if not names:
        return Prediction(None, {}, float(scores[0]))
    odds = np.exp(scores.astype(np.float64) - scores.max())
    shares = (odds / odds.sum()).tolist()
    return Prediction(names[int(scores.argmax())], dict(zip(names, shares, strict=True)))
