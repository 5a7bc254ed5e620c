"""A vocabulary that the library learns from texts, and what it is refused for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from anyformer.errors import TextError, cut

if TYPE_CHECKING:
    import tokenizers

MOST = 10**7  # tokens to learn, for which the library reserves memory at once
NO_TEXT = "no text to train a tokenizer on; give a corpus that is not empty"


def refuse_many(vocab_size: int) -> None:
    """Raise TextError for a vocabulary too large to be learnt."""
    if vocab_size > MOST:
        raise TextError(f"a vocabulary of {vocab_size:,} tokens is too large; {MOST:,} is the most that is learnt")


def separate(texts: Iterable[str]) -> Iterable[str]:
    """The texts. Raises TextError for one by itself, which would be read as a text a letter."""
    if isinstance(texts, str):
        raise TextError(f"{cut(texts, 40)!r} is one text, where several are learnt from; put it into brackets")
    return texts


def fit(inner: tokenizers.Tokenizer, trainer: Any, texts: Iterable[str]) -> None:
    """Let the library learn from texts; its special tokens have the first ids. Raises TextError for no character at all."""
    characters = 0

    def counted() -> Iterator[str]:
        nonlocal characters
        for text in separate(texts):
            characters += len(text)
            yield text

    inner.train_from_iterator(counted(), trainer)
    if not characters:
        raise TextError(NO_TEXT)
