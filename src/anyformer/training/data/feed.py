"""The data of a run: an endless stream of batches that can stop, and go on where it was; rows to validate on."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from anyformer.recipe import Reads, Recipe
from anyformer.spec import ModelSpec, Workload
from anyformer.text import EncodedCorpus, LabelledCorpus, PairSampler, ParallelCorpus, Sampler, Tokenizer
from anyformer.text.conversations import ExchangeCorpus

Rows = Any  # a NamedTuple of NumPy arrays [batch, token] with `labels` among them: text.Batch, text.PairBatch
C = TypeVar("C", EncodedCorpus, ExchangeCorpus, LabelledCorpus, ParallelCorpus)
T = TypeVar("T", bound=Tokenizer | None)


def rows_at(rows: Rows, which: slice) -> Rows:
    """Those of some rows that are at these places."""
    return type(rows)(*(field[which] for field in rows))


def parts_of(rows: Rows, size: int) -> list[Rows]:
    """The rows in parts of so many, the last of those that are left."""
    return [rows_at(rows, slice(at, at + size)) for at in range(0, len(rows.labels), size)]


class Feed(Protocol):
    """An endless stream of batches that can stop and go on."""

    def __next__(self) -> Rows: ...

    def skip(self, steps: int) -> None:
        """Go on as if so many batches had been taken: their rows, which take time, are not prepared."""
        ...

    def epochs(self, steps: int) -> float | None:
        """How often so many batches go through the text; None of several texts."""
        ...

    def state(self) -> Mapping[str, Any]:
        """The position in the data, for `restore`, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        ...


class Validation(Protocol):
    """Documents, each predicted once."""

    @property
    def document_nbytes(self) -> np.ndarray:
        """[document] UTF-8 bytes."""
        ...

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        """(rows, the document of each label [batch, token], -1 for none); `most_tokens`: a fixed sample."""
        ...


class TrainingData(ABC, Generic[C, T]):
    """Texts of one kind to train on, and others to validate on, for one kind of objective; the tokenizer is saved with a run."""

    reads: ClassVar[Reads]  # which kind it is, as `ObjectiveSpec.reads`

    def __init__(self, train: C, held_out: C | None, tokenizer: T) -> None:
        self.train, self.held_out, self.tokenizer = train, held_out, tokenizer

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes that are predicted, none where numbers are; None where tokens are."""
        return None

    @property
    def vocab_size(self) -> int:
        """Of the tokenizer."""
        assert self.tokenizer is not None
        return self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        """Of the training text, the validation text and the tokenizer."""
        return hashlib.sha256(" ".join(self.identity()).encode()).hexdigest()

    def identity(self) -> tuple[str, ...]:
        """The fingerprints that tell this data from other."""
        assert self.tokenizer is not None
        held_out = self.held_out.fingerprint if self.held_out else ""
        return self.train.fingerprint, held_out, self.tokenizer.fingerprint

    @abstractmethod
    def feed(self, recipe: Recipe) -> Feed:
        """The batches of a recipe, from the start. Raises TextError where the text doesn't fill one."""

    @abstractmethod
    def validation(self, recipe: Recipe) -> Validation | None:
        """The validation rows; None where no text was set aside."""

    @abstractmethod
    def longest(self, spec: ModelSpec, recipe: Recipe, seq_len: int) -> int:
        """The tokens of the longest sequence that a model will be given, where rows have so many."""

    @abstractmethod
    def load(self, recipe: Recipe) -> Workload:
        """The workload of one average row, to count FLOPs by."""

    def predicted_share(self, recipe: Recipe) -> float:
        """Of the places of the stack with a head: how many have a label."""
        return recipe.objective.predicted_share


class SampledFeed:
    """The rows of the numbers that a sampler names; what it says is all there is to save."""

    def __init__(self, rows: Callable[[np.ndarray], Rows], sampler: Sampler | PairSampler) -> None:
        self._rows, self._sampler = rows, sampler
        self.skip, self.epochs = sampler.skip, sampler.epochs
        self.state, self.restore = sampler.state, sampler.restore

    def __next__(self) -> Rows:
        return self._rows(next(self._sampler))
