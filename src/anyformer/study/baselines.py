"""What predictors that have read nothing reach on the validation text: the floor under every model."""

from __future__ import annotations

import math

import numpy as np

from anyformer.recipe import Recipe
from anyformer.study.results import Baseline
from anyformer.text import EncodedCorpus
from anyformer.training.data.feed import TrainingData
from anyformer.training.objectives.labelled.data import LabelledData
from anyformer.training.run.baseline import guess_of, trivial_loss


def of_text(train: EncodedCorpus, held_out: EncodedCorpus) -> tuple[Baseline, ...]:
    """The unigram (training counts plus one) and the uniform guess, in bits per byte of what models predict."""
    counts = np.bincount(predicted(train), minlength=train.vocab_size) + 1.0
    bits = -np.log2(counts / counts.sum())
    tokens = predicted(held_out)
    found = {"unigram": float(bits[tokens].sum()), "uniform": len(tokens) * math.log2(train.vocab_size)}
    return tuple(
        Baseline(name=name, score=total / held_out.nbytes, loss=total * math.log(2) / len(tokens))
        for name, total in found.items()
    )


def of_objective(data: TrainingData, recipe: Recipe) -> tuple[Baseline, ...]:
    """What the recipe's objective is measured against; of classes, with the accuracy of the commonest one."""
    validation = data.validation(recipe)
    assert validation is not None
    loss = trivial_loss(guess_of(recipe.objective, data), data.feed(recipe), recipe.steps, validation)
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
