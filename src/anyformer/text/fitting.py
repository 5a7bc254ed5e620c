"""Has the library learn a vocabulary, and refuses to learn one of nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from anyformer.errors import TextError

if TYPE_CHECKING:
    import tokenizers

NO_TEXT = "no text to train a tokenizer on; give a corpus that is not empty"


def fit(inner: tokenizers.Tokenizer, trainer: Any, texts: Iterable[str]) -> None:
    """Let the library learn from texts; its special tokens have the first ids. Raises TextError for no character at all."""
    characters = 0

    def counted() -> Iterator[str]:
        nonlocal characters
        for text in texts:
            characters += len(text)
            yield text

    inner.train_from_iterator(counted(), trainer)
    if not characters:
        raise TextError(NO_TEXT)
