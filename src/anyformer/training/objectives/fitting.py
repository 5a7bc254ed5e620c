"""The head that an objective trains, put on an architecture that has none."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.families import with_classifier
from anyformer.families.heads import fitted
from anyformer.recipe import Contrastive, Labelled, ObjectiveSpec
from anyformer.spec import ModelSpec
from anyformer.training.objectives.contrastive.loss import with_embedding


def fitted_to(spec: ModelSpec, objective: ObjectiveSpec, labels: Sequence[str] | None = None) -> ModelSpec:
    """The architecture with the objective's head: a row for each of the data's `labels`, one where they are numbers.

    As it is where it has that head, or the objective trains those that it has.
    """
    if isinstance(objective, Labelled) and labels is not None:
        return with_classifier(spec, len(labels) or 1, objective.head)
    return with_embedding(spec) if isinstance(objective, Contrastive) else fitted(spec, objective)
