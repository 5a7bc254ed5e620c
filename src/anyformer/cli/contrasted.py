"""What commands do with pairs of texts that belong together: read them, with a tokenizer; say how well a model finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyformer.cli.inputs import HeldOut, Sources, new_tokenizer

if TYPE_CHECKING:
    from anyformer.model import Transformer
    from anyformer.recipe import Contrastive, Precision, Recipe
    from anyformer.text import Tokenizer
    from anyformer.training.objectives.contrastive.data import ContrastData
    from anyformer.training.run import TrainingResult


def contrast_data(
    given: Sources, held_out: HeldOut, tokenizer: Tokenizer | None, vocab_size: int | None, objective: Contrastive
) -> ContrastData:
    """Pairs of texts, split unless others are there to validate on.

    Without a tokenizer, with one that is trained on both sides.
    """
    from anyformer.text import split_pairs
    from anyformer.training.objectives.contrastive.data import ContrastData

    corpus = given.pairs()
    pairs, unseen = (corpus, held_out.pairs()) if isinstance(held_out, Sources) else split_pairs(corpus, held_out)
    return ContrastData(pairs, unseen, tokenizer or new_tokenizer(pairs.texts(), vocab_size, objective))


def found_after(result: TrainingResult, data: ContrastData, recipe: Recipe) -> dict[str, float | None]:
    """How well a trained model finds the pairs that it is validated on; nothing where there are none."""
    from anyformer.inference import retrieve
    from anyformer.recipe import Contrastive

    if data.held_out is None:
        return {}
    cut = isinstance(recipe.objective, Contrastive) and recipe.objective.truncate
    found = retrieve(result.model, data.tokenizer, data.held_out.pairs, longest=recipe.seq_len, truncate=cut)
    return {"accuracy": found.accuracy, "mrr": found.mrr}


def evaluated(
    model: Transformer,
    tokenizer: Tokenizer,
    given: Sources,
    held_out: float | None,
    recipe: Recipe,
    precision: Precision,
) -> dict[str, Any]:
    """How well a model finds the pairs of two files, or those that a run sets aside of them."""
    from anyformer.inference import retrieve
    from anyformer.recipe import Contrastive
    from anyformer.text import split_pairs
    from anyformer.training.objectives.contrastive.data import ContrastPairs, ContrastValidation, batch_pairs
    from anyformer.training.objectives.objective import objective_of
    from anyformer.training.run.baseline import Chance
    from anyformer.training.run.evaluation import evaluate

    pairs = given.pairs()
    pairs = pairs if held_out is None else split_pairs(pairs, held_out)[1]
    cut = isinstance(recipe.objective, Contrastive) and recipe.objective.truncate
    encoded = ContrastPairs(pairs, tokenizer, recipe.seq_len, cut)
    batch = min(len(pairs.pairs), batch_pairs(recipe, int(encoded.lengths.max())))
    validation = ContrastValidation(pairs, encoded, batch)
    loss = evaluate(model, objective_of(recipe.objective, model.spec), validation, precision=precision).loss
    guesses = [Chance(0).losses(rows) for rows, _ in validation.batches(0)]
    found = retrieve(model, tokenizer, pairs.pairs, longest=recipe.seq_len, truncate=cut)
    return {
        "objective": recipe.objective.kind,
        "loss": loss,
        "chance_loss": sum(float(each.sum()) for each in guesses) / len(pairs.pairs),
        "batch_pairs": batch,
        **found._asdict(),
    }
