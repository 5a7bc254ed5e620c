"""The loss of a prediction that has read nothing: by how often each label is said, or their mean; training must beat it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from anyformer.recipe import ObjectiveSpec
from anyformer.text import NOT_PREDICTED
from anyformer.training.data.feed import Feed, Rows, TrainingData, Validation

MOST_LABELS = 2**18  # of the training rows that are counted
BATCH_TOKENS = 4096


class Guess(ABC):
    """A prediction that is the same for all."""

    @abstractmethod
    def learn(self, rows: Rows) -> int:
        """Take the labels of some rows into account; return how many there are."""

    @abstractmethod
    def losses(self, rows: Rows) -> np.ndarray:
        """The loss of each label of some rows."""


class Frequency(Guess):
    """The frequency of each label; one more of each is counted, so that none is impossible."""

    def __init__(self, n_labels: int) -> None:
        self._counts = np.ones(n_labels)

    def learn(self, rows: Rows) -> int:
        found = np.bincount(rows.labels[rows.labels != NOT_PREDICTED], minlength=len(self._counts))
        self._counts += found
        return int(found.sum())

    def losses(self, rows: Rows) -> np.ndarray:
        nats = np.log(self._counts.sum()) - np.log(self._counts)
        return nats[rows.labels[rows.labels != NOT_PREDICTED]]


class Mean(Guess):
    """The mean of numbers."""

    def __init__(self) -> None:
        self._sum, self._n = 0.0, 0

    def learn(self, rows: Rows) -> int:
        self._sum += float(rows.values.sum(dtype=np.float64))
        self._n += rows.values.size
        return rows.values.size

    def losses(self, rows: Rows) -> np.ndarray:
        return (rows.values.astype(np.float64) - self._sum / self._n) ** 2


class Chance(Guess):
    """An even guess among the choices that each row has; nothing is to be learnt from others."""

    def learn(self, rows: Rows) -> int:
        return MOST_LABELS

    def losses(self, rows: Rows) -> np.ndarray:
        return rows.chance()


def guess_of(objective: ObjectiveSpec, data: TrainingData) -> Guess:
    """The guess that an objective is measured against: it has learnt nothing yet."""
    match objective.trivial:
        case "frequency":
            return Frequency(len(data.labels) if data.labels else data.vocab_size)
        case "mean":
            return Mean()
        case "chance":
            return Chance()


def trivial_loss(guess: Guess, feed: Feed, batches: int, validation: Validation) -> float:
    """The loss a label of the validation rows, guessed by the labels in the first `batches` of a fresh feed.

    Counting ends at `MOST_LABELS`.
    """
    n = 0
    for _ in range(batches):
        n += guess.learn(next(feed))
        if n >= MOST_LABELS:
            break
    losses = [guess.losses(rows) for rows, _ in validation.batches(BATCH_TOKENS)]
    return sum(float(each.sum()) for each in losses) / sum(each.size for each in losses)
