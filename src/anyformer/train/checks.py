"""What can be known to be wrong before anything is built or written."""

from __future__ import annotations

from anyformer.errors import UsageError
from anyformer.layers.embedding import LearnedPositionsSpec
from anyformer.recipe import Recipe
from anyformer.spec import ModelSpec
from anyformer.train.data import TrainingData
from anyformer.train.objectives import objective_of


def check_run(spec: ModelSpec, recipe: Recipe, data: TrainingData) -> None:
    """Raise what would stop a run of this architecture by this recipe on this data before its first step."""
    objective_of(recipe.objective, spec)
    check_vocabulary(spec, data.vocab_size)
    check_positions(spec, data.longest(recipe))
    recipe.learning_rates(spec.stack.d_model)


def check_vocabulary(spec: ModelSpec, vocab_size: int) -> None:
    """Raise UsageError where the tokenizer has ids that the model has no row for."""
    rows = min([spec.vocab_size, *(head.table.rows for head in spec.heads[:1])])
    if rows < vocab_size:
        raise UsageError(
            f"the model has a vocabulary of {rows}, smaller than the tokenizer's {vocab_size}; "
            f"resize it with --vocab {vocab_size}, or use another tokenizer"
        )


def check_positions(spec: ModelSpec, longest: int) -> None:
    """Raise UsageError where sequences go beyond the model's learned positions."""
    learned = [value.n_positions for value in spec.nested() if isinstance(value, LearnedPositionsSpec)]
    if learned and min(learned) < longest:
        raise UsageError(
            f"sequences of {longest} tokens go beyond the model's {min(learned)} learned positions; "
            f"use --seq-len {min(learned)} or less"
        )
