"""What can be known to be wrong before anything is built or written."""

from __future__ import annotations

from anyformer.errors import UsageError
from anyformer.layers.embedding import LearnedPositionsSpec
from anyformer.recipe import MultiToken, Recipe
from anyformer.spec import ModelSpec
from anyformer.train.data import TrainingData
from anyformer.train.objectives import objective_of

SOURCES = {"text": "one text (--data)", "pairs": "pairs of texts (--source and --target)"}


def check_run(spec: ModelSpec, recipe: Recipe, data: TrainingData) -> None:
    """Raise what would stop a run of this architecture by this recipe on this data before its first step."""
    objective_of(recipe.objective, spec)
    if recipe.objective.reads != data.reads:
        given, wanted = SOURCES[data.reads], SOURCES[recipe.objective.reads]
        raise UsageError(f"{recipe.objective.kind} reads {wanted}, and what is given is {given}")
    check_ahead(spec, recipe)
    check_vocabulary(spec, data.vocab_size)
    check_positions(spec, data.longest(recipe))
    recipe.learning_rates(spec.stack.d_model)


def check_vocabulary(spec: ModelSpec, vocab_size: int) -> None:
    """Raise UsageError where the tokenizer has ids that the model has no row for."""
    rows = min([spec.vocab_size, *(head.table.rows for head in spec.heads[:1] if head.table and head.pool is None)])
    if rows < vocab_size:
        raise UsageError(
            f"the model has a vocabulary of {rows}, smaller than the tokenizer's {vocab_size}; "
            f"resize it with --vocab {vocab_size}, or use another tokenizer"
        )


def check_ahead(spec: ModelSpec, recipe: Recipe) -> None:
    """Raise UsageError where the model's modules for further tokens would learn nothing."""
    if not spec.ahead:
        return
    if not isinstance(recipe.objective, MultiToken):
        raise UsageError(
            f"the objective {recipe.objective.kind} leaves the {len(spec.ahead)} modules of `ahead` untrained; "
            "use the objective MultiToken, or leave them out of the specification"
        )
    if recipe.seq_len <= len(spec.ahead):
        raise UsageError(
            f"rows of {recipe.seq_len} tokens have nothing {len(spec.ahead)} further ahead; use a --seq-len above it"
        )


def check_positions(spec: ModelSpec, longest: int) -> None:
    """Raise UsageError where sequences go beyond the model's learned positions."""
    learned = [value.n_positions for value in spec.nested() if isinstance(value, LearnedPositionsSpec)]
    if learned and min(learned) < longest:
        raise UsageError(
            f"sequences of {longest} tokens go beyond the model's {min(learned)} learned positions; "
            f"use --seq-len {min(learned)} or less"
        )
