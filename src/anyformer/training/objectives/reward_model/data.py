"""Answers as a reward model reads them: each whole, behind what it answers, with the token that closes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from anyformer.text.packing import padded
from anyformer.training.objectives.answers.encoded import EncodedExchanges, Texts


class AnswerRows(NamedTuple):
    """What was asked, with each of its answers, the preferred one first; padded at the right."""

    ids: np.ndarray  # [exchange, answer, token] int64, 0 at padding
    mask: np.ndarray  # [exchange, answer, token] bool, True at tokens
    labels: np.ndarray  # [exchange, 1] int64, 0: which of them is preferred

    def chance(self) -> np.ndarray:
        """Nats [exchange, 1] of an even guess."""
        return np.full(self.labels.shape, np.log(self.ids.shape[1]))


class EncodedAnswers(EncodedExchanges):
    """The answers of an exchange are an example; of one that a template writes anew on the way, its last text stands for it."""

    unread: ClassVar[int] = 0

    def texts(self, answers: Sequence[Texts], line: int) -> list[Texts]:
        return [[texts[-1] for texts in answers]] if all(map(len, answers)) else []

    def batch(self, numbers: np.ndarray) -> AnswerRows:
        ids, mask = padded([text.ids for i in numbers for text in self.examples[i]], 0)
        shape = (len(numbers), -1, ids.shape[-1])
        return AnswerRows(ids.reshape(shape), mask.reshape(shape), np.zeros((len(numbers), 1), dtype=np.int64))
