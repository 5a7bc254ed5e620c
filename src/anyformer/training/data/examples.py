"""Examples that a row holds whole: what data for labels, for sentence embeddings and for conversations have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from anyformer.errors import TextError
from anyformer.recipe import Examples, ObjectiveSpec, Recipe
from anyformer.spec import ModelSpec
from anyformer.text import PairSampler, Tokenizer, length_batches, some_of
from anyformer.training.data.feed import C, Feed, Rows, SampledFeed, TrainingData


class Encoded(Protocol):
    """Texts as ids: `lengths` [example, …] in tokens, and how many texts are `cut` to the length of a row.

    `sources` [example] is the number of each one's document.
    """

    lengths: np.ndarray
    cut: int
    sources: np.ndarray

    @property
    def nbytes(self) -> np.ndarray:
        """[document] int64: UTF-8 bytes, by which losses are told a byte."""
        ...

    def batch(self, numbers: np.ndarray) -> Rows:
        """The examples of these numbers, in their order."""
        ...


E = TypeVar("E", bound=Encoded)


class ExampleData(TrainingData[C, Tokenizer], Generic[C, E]):
    """Texts to train on, and others to validate on."""

    def __init__(self, train: C, held_out: C | None, tokenizer: Tokenizer) -> None:
        super().__init__(train, held_out, tokenizer)
        self._encoded: dict[tuple[ObjectiveSpec, int, bool], E] = {}

    @abstractmethod
    def encode(self, corpus: C, recipe: Recipe) -> E:
        """Texts as ids, of a row's tokens at most. Raises TextError for a longer one, unless it may be cut."""

    def encoded(self, recipe: Recipe) -> E:
        """The texts to train on as rows of this recipe."""
        return self._kept(self.train, recipe)

    def unseen(self, recipe: Recipe) -> E | None:
        """Those to validate on; None where none were set aside."""
        return None if self.held_out is None else self._kept(self.held_out, recipe)

    def _kept(self, corpus: C, recipe: Recipe) -> E:
        """A corpus encoded, once."""
        key = (recipe.objective, recipe.seq_len, corpus is self.train)
        if key not in self._encoded:
            self._encoded[key] = self.encode(corpus, recipe)
        return self._encoded[key]

    def validation(self, recipe: Recipe) -> ExampleValidation[E] | None:
        unseen = self.unseen(recipe)
        return None if unseen is None else ExampleValidation(unseen)

    def longest(self, spec: ModelSpec, recipe: Recipe, seq_len: int) -> int:
        return min(seq_len, max(int(each.lengths.max()) for each in self._both(recipe)))

    def cut(self, recipe: Recipe) -> int:
        """How many texts, those to validate on included, are cut to the length of a row."""
        return sum(each.cut for each in self._both(recipe))

    def mean_length(self, recipe: Recipe) -> int:
        """The tokens of an average text."""
        return int(np.ceil(self.encoded(recipe).lengths.mean()))

    def _both(self, recipe: Recipe) -> list[E]:
        return [each for each in (self.encoded(recipe), self.unseen(recipe)) if each is not None]


def cuts(recipe: Recipe) -> bool:
    """Whether examples that are longer than a row are cut."""
    return isinstance(recipe.objective, Examples) and recipe.objective.truncate


class ExampleValidation(Generic[E]):
    """Every example once, in batches of like length."""

    def __init__(self, examples: E) -> None:
        self.examples, self.document_nbytes = examples, examples.nbytes

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        for numbers in read_by_length(self.examples.lengths, batch_tokens, most_tokens):
            rows = self.examples.batch(numbers)
            yield rows, np.broadcast_to(self.examples.sources[numbers][:, None], rows.labels.shape)


class FramedData(ExampleData[C, E]):
    """Texts as the tokenizer frames them; one whose own rules put nothing beside a text gets a frame."""

    def __init__(self, train: C, held_out: C | None, tokenizer: Tokenizer) -> None:
        super().__init__(train, held_out, tokenizer.with_frame())


def read_by_length(lengths: np.ndarray, batch_tokens: int, most_tokens: int | None = None) -> Iterator[np.ndarray]:
    """Numbers of all examples once, or of about `most_tokens`, in batches of like length; one that is longer is a batch."""
    batches = length_batches(lengths, max(batch_tokens, int(lengths.max())))
    return iter(some_of(batches, most_tokens, batch_tokens))


def fed_by_length(examples: Encoded, recipe: Recipe, where: str, lines: Sequence[int]) -> Feed:
    """Batches of examples of like length, without end. Raises TextError where they fill none, and for one that is longer.

    They are of the file `where`, of these lines.
    """
    return SampledFeed(examples.batch, drawn_by_length(examples.lengths.max(axis=1), recipe, where, lines))


def drawn_by_length(lengths: np.ndarray, recipe: Recipe, where: str, lines: Sequence[int]) -> PairSampler:
    """Numbers of examples of such lengths [example], by which `fed_by_length` takes them. Raises what that does."""
    most = recipe.batch_tokens
    if (n := int(lengths.sum())) < most:
        raise TextError(
            f"the {len(lines)} examples of {where} hold {n:,} tokens, less than one batch of {most:,}; give more of them or "
            "a smaller --batch-tokens"
        )
    if (n := int(lengths.max())) > most:
        raise TextError(
            f"{where}, line {lines[int(lengths.argmax())]}: it is {n} tokens long, but a batch holds {most}; make the batch "
            "larger (--batch-tokens) or rows shorter (--seq-len, --truncate)"
        )
    return PairSampler(lengths[:, None], most, recipe.seed)
