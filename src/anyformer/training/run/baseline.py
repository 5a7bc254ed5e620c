"""The loss of a prediction that has read nothing: by how often each label is said, or their mean; training must beat it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anyformer.recipe import Recipe
from anyformer.text import NOT_PREDICTED
from anyformer.training.data.feed import Rows, TrainingData, Validation
from anyformer.training.run.evaluation import BATCH_TOKENS

MOST_LABELS = 2**18  # of the training rows that are counted


def trivial_loss(recipe: Recipe, data: TrainingData, validation: Validation) -> float:
    """The loss a label of the validation rows, guessed by the first `MOST_LABELS` labels that a run by the recipe reads."""
    unseen = (rows for rows, _ in validation.batches(BATCH_TOKENS))
    match recipe.objective.trivial:
        case "frequency":  # one more of each is counted, so that none is impossible
            n = len(data.labels) if data.labels else data.vocab_size
            counts = 1 + np.bincount(np.concatenate(_first(recipe, data, _labels)), minlength=n)
            nats = np.log(counts.sum()) - np.log(counts)
            losses = [nats[_labels(rows)] for rows in unseen]
        case "mean":
            values = _first(recipe, data, lambda rows: rows.values)
            mean = sum(float(each.sum(dtype=np.float64)) for each in values) / sum(each.size for each in values)
            losses = [(rows.values.astype(np.float64) - mean) ** 2 for rows in unseen]
        case "chance":  # an even guess among the choices that each row has; nothing is to be learnt from others
            losses = [rows.chance() for rows in unseen]
    return sum(float(each.sum()) for each in losses) / sum(each.size for each in losses)


def _labels(rows: Rows) -> np.ndarray:
    return rows.labels[rows.labels != NOT_PREDICTED]


def _first(recipe: Recipe, data: TrainingData, labels: Callable[[Rows], np.ndarray]) -> list[np.ndarray]:
    """The labels of the first batches of a run, of each its own."""
    feed, found, n = data.feed(recipe), list[np.ndarray](), 0
    for _ in range(recipe.steps):
        found.append(labels(next(feed)))
        n += found[-1].size
        if n >= MOST_LABELS:
            break
    return found
