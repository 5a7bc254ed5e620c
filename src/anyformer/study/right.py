"""Which labels a trained model says rightly, by validation example."""

from __future__ import annotations

import numpy as np

from anyformer.inference.scores import scored
from anyformer.model import Transformer
from anyformer.recipe import Recipe
from anyformer.text import NOT_PREDICTED
from anyformer.training.objectives.labelled.data import LabelledData, LabelledValidation
from anyformer.training.objectives.labelled.loss import LabelledObjective
from anyformer.training.objectives.objective import objective_of


def right_of(model: Transformer, data: LabelledData, recipe: Recipe) -> tuple[int, ...]:
    """How many labels of each example are right, of those that have any; nothing where labels are numbers."""
    objective, validation = objective_of(recipe.objective, model.spec), data.validation(recipe)
    if not isinstance(objective, LabelledObjective) or not isinstance(validation, LabelledValidation):
        return ()
    if objective.said.labels == "numbers":
        return ()
    right = np.zeros(len(validation.document_nbytes), dtype=np.int64)
    labels = np.zeros_like(right)
    for numbers, scores in scored(model, objective, validation, recipe.precision):
        meant = validation.examples.batch(numbers).labels
        said = (scores if scores.ndim == 3 else scores[:, None]).argmax(-1)
        right[numbers] = ((said == meant) & (meant != NOT_PREDICTED)).sum(1)
        labels[numbers] = (meant != NOT_PREDICTED).sum(1)
    return tuple(right[labels > 0].tolist())
