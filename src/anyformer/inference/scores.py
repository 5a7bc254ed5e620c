"""What a model's head for labels gives, batch by batch, before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from anyformer.errors import UsageError
from anyformer.layers.embedding import learned_positions
from anyformer.model import Transformer
from anyformer.recipe import Precision
from anyformer.spec import ModelSpec
from anyformer.training.objectives.architecture import usual
from anyformer.training.objectives.labelled.data import LabelledValidation
from anyformer.training.objectives.labelled.loss import LabelledObjective
from anyformer.training.objectives.objective import LossContext, objective_of
from anyformer.training.step.device import autocast

BATCH_TOKENS = 4096


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
    """The names of the model's classes. Raises UsageError where nobody named them."""
    if model.labels is None:
        raise UsageError(
            "nothing names the classes of this model, or it says several at once; set model.labels, or id2label and "
            "problem_type in its config.json"
        )
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
            scores, _ = objective.scores(LossContext(model, model.head(), device), rows)
        yield source[:, 0], scores.cpu().numpy()
