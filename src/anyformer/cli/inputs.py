"""What commands are given to read: text or pairs of texts with a tokenizer, a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyformer.errors import UsageError
from anyformer.spec import is_path

if TYPE_CHECKING:
    from anyformer.recipe import ObjectiveSpec, Recipe
    from anyformer.spec import ModelSpec
    from anyformer.text import Corpus, Tokenizer
    from anyformer.train.data import PairData, TextData

TOKENIZER_NBYTES = 10_000_000  # of text are enough to learn a vocabulary from
VOCAB_SIZE = 4096  # of a tokenizer that is trained on the way


def read_recipe(name: str, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a name or a file, with the fields changed that are not None."""
    from anyformer import recipe

    chosen = recipe.read(name) if is_path(name) else recipe.named(name)
    return chosen.but(**{field: value for field, value in changes.items() if value is not None})


def objective_for(
    named: str | None, recipe_name: str, spec: ModelSpec, reads: Literal["text", "pairs"]
) -> ObjectiveSpec | None:
    """Return the objective of that name, else None where the recipe says one that fits, else the architecture's usual one."""
    from anyformer.recipe import OBJECTIVES
    from anyformer.train.objectives import usual

    if named is not None:
        return OBJECTIVES[named]
    return None if reads == "text" and _says_objective(recipe_name) else usual(spec, reads)


def _says_objective(recipe_name: str) -> bool:
    import yaml

    from anyformer import recipe

    if not is_path(recipe_name):
        return recipe.named(recipe_name).objective != recipe.Recipe().objective
    recipe.read(recipe_name)  # raises what is wrong with it
    return "objective" in yaml.safe_load(Path(recipe_name).read_text(encoding="utf-8"))


def check_sources(data: str | None, source: Path | None, target: Path | None) -> None:
    """Raise UsageError unless there is either one text or a pair of files."""
    if (source is None) != (target is None):
        raise UsageError("--source and --target go together: line n of one translates line n of the other")
    if (data is None) == (source is None):
        raise UsageError("give either --data, or --source and --target")


def text_data(
    corpus: Corpus,
    validation: float,
    tokenizer: Tokenizer | None,
    vocab_size: int | None,
    objective: ObjectiveSpec | None = None,
) -> TextData:
    """Return a corpus, split and encoded; without a tokenizer, by one that is trained on its training part.

    That one has the special tokens of the objective among its `vocab_size`.
    """
    from anyformer.text import Tokenizer, encode_corpus
    from anyformer.train.data import TextData

    texts, held_out = corpus.split(validation)
    own = tokenizer
    if own is None:
        roles, specials = (objective.roles, objective.specials) if objective else ({}, ())
        learned = (vocab_size or VOCAB_SIZE) - len(roles) - len(specials)
        own = Tokenizer.train(texts.sample(TOKENIZER_NBYTES), learned)
        own = own.with_specials(specials, roles) if roles or specials else own
    return TextData(encode_corpus(texts, own), encode_corpus(held_out, own), own)


def pair_data(
    source: Path, target: Path, validation: float, tokenizer: Tokenizer | None, vocab_size: int | None
) -> PairData:
    """Return sentences and their translations, split; without a tokenizer, with one that is trained on both."""
    from anyformer.text import Tokenizer, read_parallel
    from anyformer.train.data import PairData, split_pairs

    pairs, held_out = split_pairs(read_parallel(source, target), validation)
    return PairData(pairs, held_out, tokenizer or Tokenizer.train(pairs.texts(), vocab_size or VOCAB_SIZE))
