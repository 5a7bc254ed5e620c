"""How well a model says labels: accuracy and F1 of classes, the error and correlation of numbers; beside one constant answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyformer.inference.classification import scored
from anyformer.model import Transformer
from anyformer.recipe import Precision, Recipe
from anyformer.text import NOT_PREDICTED
from anyformer.training.objectives.labelled.data import LabelledData, LabelledValidation
from anyformer.training.objectives.labelled.loss import LabelledObjective
from anyformer.training.objectives.objective import objective_of

WORDS = {
    "accuracy": "{:.1%} right",
    "reward": "reward {:.4f}",
    "margin": "by {:.4f} on average",
    "mrr": "mean reciprocal rank {:.4f}",
    "macro_f1": "F1 {:.4f}",
    "majority_accuracy": "{:.1%} by the commonest label alone",
    "rmse": "off by {:.4g} (root mean square)",
    "pearson": "Pearson {:.4f}",
    "spearman": "Spearman {:.4f}",
    "mean_rmse": "off by {:.4g} by the mean alone",
}


def in_words(figures: Mapping[str, Any]) -> str:
    """Figures as a sentence says them; those that have no words, or no value, are left out."""
    known = ((WORDS[name], value) for name, value in figures.items() if name in WORDS and value is not None)
    return ", ".join(words.format(value) for words, value in known)


def figures(
    model: Transformer, objective: LabelledObjective, examples: LabelledValidation, precision: Precision = "float32"
) -> dict[str, float | None]:
    """The figures of `figures_of_classes` or `figures_of_numbers` for labelled examples."""
    said, meant = [], []
    numbers = objective.said.labels == "numbers"
    for indices, scores in scored(model, objective, examples, precision):
        rows = examples.examples.batch(indices)
        if numbers:
            said.append(scores[:, 0])
            meant.append(rows.values[:, 0])
        else:
            labels = rows.labels if scores.ndim == 3 else rows.labels[:, 0]
            real = labels != NOT_PREDICTED
            said.append(scores.argmax(-1)[real])
            meant.append(labels[real])
    found = np.concatenate(said), np.concatenate(meant)
    return figures_of_numbers(*found) if numbers else figures_of_classes(*found)


def figures_of_classes(said: NDArray[Any], meant: NDArray[Any]) -> dict[str, float | None]:
    """Accuracy, macro_f1 and majority_accuracy of classes said and meant [label].

    F1 of a class is 2 · hits / (said + meant); macro is its mean over the classes that are said or meant. The majority's
    accuracy is that of always saying what is meant most often here, the best constant answer.
    """
    n = 1 + int(max(said.max(), meant.max()))
    hits = np.bincount(meant[said == meant], minlength=n)
    total = np.bincount(said, minlength=n) + np.bincount(meant, minlength=n)
    f1 = 2 * hits[total > 0] / total[total > 0]
    return {
        "accuracy": float(hits.sum() / len(meant)),
        "macro_f1": float(f1.mean()),
        "majority_accuracy": float(np.bincount(meant).max() / len(meant)),
    }


def figures_of_numbers(said: NDArray[Any], meant: NDArray[Any]) -> dict[str, float | None]:
    """Rmse, pearson, spearman and mean_rmse of numbers said and meant [label].

    Correlations are None where all numbers of one side are equal. `mean_rmse` is that of always saying the mean of what is
    meant here, the best constant answer.
    """
    from scipy import stats

    said, meant = said.astype(np.float64), meant.astype(np.float64)
    varied = len(meant) > 1 and float(np.ptp(said)) > 0 and float(np.ptp(meant)) > 0
    return {
        "rmse": float(np.sqrt(np.mean((said - meant) ** 2))),
        "pearson": float(np.asarray(stats.pearsonr(said, meant))[0]) if varied else None,
        "spearman": float(np.asarray(stats.spearmanr(said, meant))[0]) if varied else None,
        "mean_rmse": float(meant.std()),
    }


def right_labels(model: Transformer, data: LabelledData, recipe: Recipe) -> tuple[int, ...]:
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
