"""What can be known to be wrong before anything is built or written."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.errors import UsageError
from anyformer.layers.embedding import learned_positions
from anyformer.recipe import Contrastive, Labelled, MultiToken, ObjectiveSpec, Recipe
from anyformer.spec import ModelSpec
from anyformer.training.data.text import TrainingData
from anyformer.training.objectives import objective_of
from anyformer.training.objectives.contrastive.data import ContrastData
from anyformer.training.objectives.denoising.pairs import PairNoise
from anyformer.training.objectives.noises import noise_of
from anyformer.training.step.auxiliary import companion_of
from anyformer.training.step.memories import check_memory

SOURCES = {
    "text": "one text (--data)",
    "pairs": "pairs of texts (--source and --target)",
    "labelled": "labelled text (--data with text and label, or tokens and labels)",
}


def check_run(spec: ModelSpec, recipe: Recipe, data: TrainingData) -> None:
    """Raise what would stop a run of this architecture by this recipe on this data before its first step."""
    beside = companion_of(objective_of(recipe.objective, spec), spec)
    if recipe.objective.reads != data.reads:
        given, wanted = SOURCES[data.reads], SOURCES[recipe.objective.reads]
        raise UsageError(f"{recipe.objective.kind} reads {wanted}, and what is given is {given}")
    check_contrast(recipe, data)
    check_ahead(spec, recipe)
    check_memory(spec, recipe)
    if data.labels is None:
        check_vocabulary(spec, data.vocab_size)
    else:
        check_labels(spec, recipe.objective, data.labels)
        check_vocabulary(spec.but(heads=()), data.vocab_size)
    for each in (spec, *([beside.spec] if beside is not None else [])):
        check_positions(each, longest(spec, recipe, data))
    recipe.learning_rates(spec.stack.d_model)


def longest(spec: ModelSpec, recipe: Recipe, data: TrainingData) -> int:
    """The tokens of the longest sequence that this model will be given."""
    noise = noise_of(recipe, data.tokenizer) if spec.encoder is None and data.reads == "text" else None
    return noise.joint(recipe.seq_len) if isinstance(noise, PairNoise) else data.longest(recipe)


def check_vocabulary(spec: ModelSpec, vocab_size: int) -> None:
    """Raise UsageError where the tokenizer has ids that the model has no row for."""
    # A single row scores tokens, and names none.
    tables = [head.table.rows for head in spec.heads[:1] if head.table and head.pool is None and head.table.rows > 1]
    rows = min([spec.vocab_size, *tables])
    if rows < vocab_size:
        raise UsageError(
            f"the model has a vocabulary of {rows}, smaller than the tokenizer's {vocab_size}; "
            f"resize it with --vocab {vocab_size}, or use another tokenizer"
        )


def check_labels(spec: ModelSpec, objective: ObjectiveSpec, labels: Sequence[str]) -> None:
    """Raise UsageError where the head that says a label has more or fewer rows than there are."""
    head = next(head for head in spec.heads if isinstance(objective, Labelled) and head.name == objective.head)
    rows, wanted = head.table.rows if head.table else 0, len(labels) or 1
    if rows != wanted:
        raise UsageError(
            f"the model's head {head.name} has {rows} rows and there are {wanted} labels; give it one for each "
            f"(anyformer.with_classifier(spec, {wanted}, {head.name!r}))"
        )


def check_contrast(recipe: Recipe, data: TrainingData) -> None:
    """Raise UsageError where pairs are prepared for another objective, or the loss is to have what this one does not."""
    if isinstance(recipe.objective, Contrastive) != isinstance(data, ContrastData):
        wanted = "ContrastData" if isinstance(recipe.objective, Contrastive) else "PairData or others"
        raise UsageError(f"{recipe.objective.kind} is trained on {wanted}, not on {type(data).__name__}")
    if isinstance(recipe.objective, Contrastive):
        for name in ("label_smoothing", "z_loss"):
            if getattr(recipe, name):
                raise UsageError(
                    f"{recipe.objective.kind} has no {name}, and the recipe says {getattr(recipe, name):g}; leave it out"
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
    learned = learned_positions(spec)
    if learned is not None and learned < longest:
        raise UsageError(
            f"sequences of {longest} tokens go beyond the model's {learned} learned positions; "
            f"use --seq-len {learned} or less"
        )
