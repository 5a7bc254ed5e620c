"""The teacher of a run: loaded, found to score the same tokens of the same texts, and known by what it holds."""

from __future__ import annotations

from functools import partial

import torch

from anyformer.errors import UsageError, errors_of
from anyformer.hub import load
from anyformer.hub.source import find
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.training.data.feed import TrainingData
from anyformer.training.objectives.objective import Teacher, objective_of
from anyformer.training.run.checks import check_positions


def teacher_of(spec: ModelSpec, recipe: Recipe, data: TrainingData, device: torch.device) -> Teacher | None:
    """The teacher that the recipe's distillation names, on the device; None where it has none.

    Raises what `load` does, UsageError for one that does not do what the run is to learn, of the student's own tokens.
    """
    if recipe.distillation is None:
        return None
    path = recipe.distillation.path
    model, tokenizer = load(path, device=device, dtype=torch.float32 if recipe.precision == "float32" else None)
    model.requires_grad_(False)
    with errors_of(f"the teacher {path}", UsageError):
        objective = objective_of(recipe.objective, model.spec)
        check_positions(model.spec, partial(data.longest, model.spec, recipe), recipe.seq_len)
    if tokenizer is not None and data.tokenizer is not None and tokenizer.fingerprint != data.tokenizer.fingerprint:
        raise UsageError(
            f"the teacher {path} has another tokenizer than the run; leave --tokenizer and --vocab out to take its"
        )
    if None not in (model.labels, data.labels) and model.labels != data.labels:
        told, own = (", ".join(labels or ()) for labels in (model.labels, data.labels))
        raise UsageError(f"the teacher {path} tells {told} apart, in that order, and the data {own}; take another")
    if (theirs := model.spec.n_scored) != (ours := spec.n_scored):
        raise UsageError(
            f"the teacher {path} scores {theirs} tokens, and the model {ours}; resize it with --vocab {theirs}"
        )
    return Teacher(model, objective, recipe.distillation)


def rows_for(recipe: Recipe, data: TrainingData) -> int:
    """The tokens that a model has to score for the data: those of its tokenizer, or of a teacher's head, be they more.

    Raises what `find` does, UsageError for a teacher that does not do what is to be learnt.
    """
    if recipe.distillation is None or data.labels is not None:  # a head of labels has no rows of tokens
        return data.vocab_size
    path = recipe.distillation.path
    spec = find(path).spec
    with errors_of(f"the teacher {path}", UsageError):
        objective_of(recipe.objective, spec)
    return spec.n_scored
