"""Texts that are read whole, as the tokenizer frames them: what data for labels and for sentence embeddings have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

import numpy as np

from anyformer.recipe import FramedTexts, Recipe
from anyformer.text import Tokenizer
from anyformer.training.data.feed import C, TrainingData


class Encoded(Protocol):
    """Texts as ids: `lengths` [example, …] in tokens, and how many texts are `cut` to the length of a row."""

    lengths: np.ndarray
    cut: int


E = TypeVar("E", bound=Encoded)


class FramedData(TrainingData[C, Tokenizer], Generic[C, E]):
    """Texts to train on, and others to validate on. A tokenizer whose own rules put nothing beside a text gets a frame."""

    def __init__(self, train: C, held_out: C | None, tokenizer: Tokenizer) -> None:
        super().__init__(train, held_out, tokenizer.with_frame())
        self._encoded: dict[tuple[int, bool, bool], E] = {}

    @abstractmethod
    def encode(self, corpus: C, longest: int, truncate: bool) -> E:
        """Texts as ids, `longest` tokens each at most. Raises TextError for a longer one, unless it may be cut."""

    def encoded(self, recipe: Recipe, *, held_out: bool = False) -> E:
        """The texts as rows of this recipe; once they are encoded they are kept."""
        said = recipe.objective
        key = (recipe.seq_len, isinstance(said, FramedTexts) and said.truncate, held_out)
        if key not in self._encoded:
            corpus = self.held_out if held_out else self.train
            assert corpus is not None
            self._encoded[key] = self.encode(corpus, *key[:2])
        return self._encoded[key]

    def longest(self, recipe: Recipe) -> int:
        return max(int(each.lengths.max()) for each in self._both(recipe))

    def cut(self, recipe: Recipe) -> int:
        """How many texts, those to validate on included, are cut to the length of a row."""
        return sum(each.cut for each in self._both(recipe))

    def _both(self, recipe: Recipe) -> list[E]:
        return [self.encoded(recipe)] + ([self.encoded(recipe, held_out=True)] if self.held_out is not None else [])
