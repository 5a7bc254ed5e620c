"""What commands do with labelled text: read it, with a tokenizer; say how well a model labels it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.inputs import HeldOut, Sources, new_tokenizer
from anyformer.errors import UsageError

if TYPE_CHECKING:
    from anyformer.model import Transformer
    from anyformer.recipe import Labelled, Precision, Recipe
    from anyformer.text import Tokenizer
    from anyformer.training.objectives.labelled.data import LabelledData
    from anyformer.training.run import TrainingResult

WORDS = {
    "accuracy": "{:.1%} right",
    "mrr": "mean reciprocal rank {:.4f}",
    "macro_f1": "F1 {:.4f}",
    "majority_accuracy": "{:.1%} by the commonest label alone",
    "rmse": "off by {:.4g} (root mean square)",
    "pearson": "Pearson {:.4f}",
    "spearman": "Spearman {:.4f}",
    "mean_rmse": "off by {:.4g} by the mean alone",
}


def labelled_data(
    given: Sources,
    held_out: HeldOut,
    tokenizer: Tokenizer | None,
    vocab_size: int | None,
    objective: Labelled,
    begun: Path | None,
    init: Path | None,
) -> LabelledData:
    """Labelled text, split unless other examples are there to validate on.

    Without a tokenizer, with one that is trained on it. The order of the labels is that of the run `begun` already, or of
    the weights `init` where they tell the same labels apart.
    """
    from anyformer.text import read_labelled, split_labelled
    from anyformer.training.objectives.labelled.data import LabelledData

    assert given.data is not None
    corpus = read_labelled(given.data).as_kind(objective.labels)
    if isinstance(held_out, Sources):
        assert held_out.data is not None
        texts, unseen = corpus, read_labelled(held_out.data).as_kind(objective.labels)
    else:
        texts, unseen = split_labelled(corpus, held_out)
    own = tokenizer or new_tokenizer(texts.texts(), vocab_size, objective)
    known = None
    if objective.labels != "numbers":
        known = _labels(begun, init, set(corpus.counts())) or corpus.names()
    return LabelledData(texts, unseen, own, known)


def _labels(begun: Path | None, init: Path | None, found: set[str]) -> tuple[str, ...] | None:
    """The labels that are known before the data is read, in the order of a head's rows."""
    from anyformer.hub.labels import labels_of, read_labels
    from anyformer.hub.source import find

    if begun is not None and (kept := read_labels(begun)) is not None:
        return kept
    before = labels_of(find(init)) if init is not None else None
    return before if before is not None and found <= set(before) else None


def with_truncation(recipe: Recipe) -> Recipe:
    """The recipe with inputs cut to the length of a row. Raises UsageError for an objective on other data."""
    from anyformer.recipe import FramedTexts

    if not isinstance(recipe.objective, FramedTexts):
        raise UsageError(
            f"--truncate is for labelled text and for pairs to be told apart, and {recipe.objective.kind} reads neither"
        )
    return recipe.but(objective=recipe.objective.but(truncate=True))


def figures_after(result: TrainingResult, data: LabelledData, recipe: Recipe) -> dict[str, float | None]:
    """How well a trained model labels what it is validated on; nothing where there is nothing."""
    from anyformer.inference import figures
    from anyformer.training.objectives.labelled.loss import LabelledObjective
    from anyformer.training.objectives.objective import objective_of

    validation = data.validation(recipe)
    objective = objective_of(recipe.objective, result.model.spec)
    if validation is None or not isinstance(objective, LabelledObjective):
        return {}
    return figures(result.model, objective, validation, recipe.precision)


def evaluated(
    model: Transformer,
    tokenizer: Tokenizer,
    data: str,
    held_out: float | None,
    objective: Labelled,
    seq_len: int | None,
    precision: Precision,
) -> dict[str, Any]:
    """How well a model labels the examples of a file, or those that a run sets aside of it."""
    from anyformer.inference import figures
    from anyformer.inference.scores import label_names, longest_of
    from anyformer.text import read_labelled, split_labelled
    from anyformer.text.encoded_labelled import EncodedLabelled
    from anyformer.training.objectives.labelled.data import LabelledValidation
    from anyformer.training.objectives.labelled.loss import LabelledObjective
    from anyformer.training.run.evaluation import evaluate

    corpus = read_labelled(data).as_kind(objective.labels)
    corpus = corpus if held_out is None else split_labelled(corpus, held_out)[1]
    names = () if objective.labels == "numbers" else label_names(model)
    longest = seq_len or longest_of(model.spec)
    examples = EncodedLabelled(corpus, tokenizer, names, longest, truncate=objective.truncate)
    validation, judge = LabelledValidation(examples), LabelledObjective(objective, model.spec)
    found = evaluate(model, judge, validation, precision=precision)
    return {
        "objective": objective.kind,
        "loss": found.loss,
        "examples": len(examples),
        "labels": found.tokens,
        "cut": examples.cut,
        **figures(model, judge, validation, precision),
    }


def in_words(figures: dict[str, Any]) -> str:
    """Figures as a sentence says them."""
    return ", ".join(
        WORDS[name].format(value) for name, value in figures.items() if name in WORDS and value is not None
    )
