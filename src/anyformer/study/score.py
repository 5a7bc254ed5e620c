"""What runs are judged by: a ratio of two sums over the validation documents, so that both can be resampled together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyformer.study.results import DocumentLoss


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
    # Of documents, and of the labels of each that were said rightly; one number a document.
    above: Callable[[Sequence[DocumentLoss], Sequence[int]], list[float]]
    below: Callable[[Sequence[DocumentLoss]], list[float]]

    def parts(self, documents: Sequence[DocumentLoss], right: Sequence[int] = ()) -> tuple[list[float], list[float]]:
        """The numerators and denominators, one a document; `right` are the labels of each that were said rightly."""
        return self.above(documents, right), self.below(documents)

    def is_better(self, difference: float) -> bool:
        """Whether this much more is better."""
        return difference > 0 if self.higher else difference < 0


def _labels(documents: Sequence[DocumentLoss]) -> list[float]:
    return [float(one.tokens) for one in documents]


BITS = Score(
    "bits_per_byte", "bits per byte", "bits per\nbyte", "total bits over total bytes", False,
    "needs fewer bits than", "needs more bits than",
    lambda documents, right: [one.nats / math.log(2) for one in documents],
    lambda documents: [float(one.nbytes) for one in documents],
)  # fmt: skip
ACCURACY = Score(
    "accuracy", "accuracy", "accuracy\n", "labels said rightly over all labels", True,
    "is right more often than", "is right less often than",
    lambda documents, right: [float(n) for n in right], _labels,
)  # fmt: skip
LOSS = Score(
    "loss", "loss", "loss\n", "total loss over all labels", False,
    "has a lower loss than", "has a higher loss than",
    lambda documents, right: [one.nats for one in documents], _labels,
)  # fmt: skip
SCORES: Mapping[str, Score] = {score.name: score for score in (BITS, ACCURACY, LOSS)}
