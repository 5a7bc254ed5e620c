"""What a run is asked to do: a model, trained by a recipe on data, kept in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.training.data.feed import TrainingData


@dataclass(frozen=True)
class Job:
    """All that tells one run from another, and where it is kept. How it runs (`RunOptions`) is no part of it."""

    spec: ModelSpec
    recipe: Recipe
    data: TrainingData
    out: Path | None = None  # the run's directory, to save in and to go on from; None: nothing is saved
    init: Path | None = None  # a directory of weights of the same architecture to start from
    name: str | None = None  # that the run is listed by
