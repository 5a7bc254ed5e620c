"""Pairs of answers of which one is preferred, as ids and as a run reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text.sources import wrong
from anyformer.training.objectives.answers.data import AnswerData
from anyformer.training.objectives.answers.encoded import EncodedExchanges, Texts, side_by_side


class PreferenceRows(NamedTuple):
    """What was asked, with either answer, the preferred one first; padded at the right."""

    ids: np.ndarray  # [pair, 2, token] int64, 0 at padding
    mask: np.ndarray  # [pair, 2, token] bool, True at tokens
    predicted: np.ndarray  # [pair, 2, token] int64, the next token of an answer, else NOT_PREDICTED
    number: np.ndarray  # [pair, 1] int64, which of all pairs it is; those to validate on are the last
    labels: np.ndarray  # [pair, 1] int64, 0: which of the two is preferred

    def chance(self) -> np.ndarray:
        """Nats [pair, 1] of an even guess."""
        return np.full(self.labels.shape, np.log(2.0))


class EncodedPreferences(EncodedExchanges):
    """The two answers of an exchange are an example."""

    def texts(self, answers: Sequence[Texts], line: int) -> list[Texts]:
        for texts in answers:
            if len(texts) != 1:
                reason = "the chat template writes what was said anew before each message of an answer"
                raise wrong(
                    self.corpus.where, line, f"{reason}; let chosen and rejected be one message of the assistant each"
                )
        return [[text for texts in answers for text in texts]]

    def batch(self, numbers: np.ndarray) -> PreferenceRows:
        ids, mask, predicted = side_by_side([text for i in numbers for text in self.examples[i]])
        shape, n = (len(numbers), 2, -1), np.asarray(numbers)[:, None]
        return PreferenceRows(
            ids.reshape(shape), mask.reshape(shape), predicted.reshape(shape), self.first + n, np.zeros_like(n)
        )


class PreferenceData(AnswerData):
    """Pairs of answers to train on, and others to validate on. A batch has at most batch_tokens on either side."""

    reads: ClassVar[Reads] = "preferences"

    def unseen(self, recipe: Recipe) -> EncodedExchanges | None:
        """Those to validate on, numbered behind those to train on."""
        pairs = super().unseen(recipe)
        if pairs is not None:
            pairs.first = len(self.encoded(recipe))
        return pairs

    def load(self, recipe: Recipe) -> Workload:
        return Workload(batch=2, query=self.mean_length(recipe))

    def predicted_share(self, recipe: Recipe) -> float:
        return 1 / self.load(recipe).tokens
