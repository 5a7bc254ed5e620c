"""What commands are given to read: text or pairs of texts with a tokenizer, a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import UsageError
from anyformer.spec import is_path

if TYPE_CHECKING:
    from anyformer.recipe import Recipe
    from anyformer.text import Corpus, Tokenizer
    from anyformer.train.data import PairData, TextData

TOKENIZER_NBYTES = 10_000_000  # of text are enough to learn a vocabulary from
VOCAB_SIZE = 4096  # of a tokenizer that is trained on the way


def read_recipe(name: str, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a name or a file, with the fields changed that are not None."""
    from anyformer import recipe

    chosen = recipe.read(name) if is_path(name) else recipe.named(name)
    return chosen.but(**{field: value for field, value in changes.items() if value is not None})


def check_sources(data: str | None, source: Path | None, target: Path | None) -> None:
    """Raise UsageError unless there is either one text or a pair of files."""
    if (source is None) != (target is None):
        raise UsageError("--source and --target go together: line n of one translates line n of the other")
    if (data is None) == (source is None):
        raise UsageError("give either --data, or --source and --target")


def text_data(corpus: Corpus, validation: float, tokenizer: Tokenizer | None, vocab_size: int | None) -> TextData:
    """Return a corpus, split and encoded; without a tokenizer, by one that is trained on its training part."""
    from anyformer.text import Tokenizer, encode_corpus
    from anyformer.train.data import TextData

    texts, held_out = corpus.split(validation)
    own = tokenizer or Tokenizer.train(texts.sample(TOKENIZER_NBYTES), vocab_size or VOCAB_SIZE)
    return TextData(encode_corpus(texts, own), encode_corpus(held_out, own), own)


def pair_data(
    source: Path, target: Path, validation: float, tokenizer: Tokenizer | None, vocab_size: int | None
) -> PairData:
    """Return sentences and their translations, split; without a tokenizer, with one that is trained on both."""
    from anyformer.text import Tokenizer, read_parallel
    from anyformer.train.data import PairData, split_pairs

    pairs, held_out = split_pairs(read_parallel(source, target), validation)
    return PairData(pairs, held_out, tokenizer or Tokenizer.train(pairs.texts(), vocab_size or VOCAB_SIZE))
