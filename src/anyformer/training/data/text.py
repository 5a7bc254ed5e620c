"""What a run reads: batches to train on without end, and rows to validate on, from text or from pairs of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from anyformer.errors import TextError
from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text import (
    EncodedCorpus,
    EncodedPairs,
    LaneSampler,
    Packed,
    PairSampler,
    ParallelCorpus,
    Sampler,
    Tokenizer,
    length_batches,
    pack,
    pack_whole,
    some_of,
)
from anyformer.training.data.feed import Feed, SampledFeed
from anyformer.training.data.segments import SegmentFeed, SegmentValidation
from anyformer.training.objectives import Rows
from anyformer.training.objectives.noises import (
    NoisyFeed,
    NoisyValidation,
    load_of,
    noise_of,
    training_rows,
    validation_rows,
)


class Validation(Protocol):
    """Documents, each predicted once."""

    @property
    def document_nbytes(self) -> np.ndarray:
        """[document] UTF-8 bytes."""
        ...

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        """(rows, the document of each label [batch, token], -1 for none); `most_tokens`: a fixed sample."""
        ...


class TrainingData(Protocol):
    """Text of one kind, for one kind of objective."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The classes that are predicted, none where numbers are; None where tokens are."""
        ...

    @property
    def reads(self) -> Reads:
        """Which kind it is, as `ObjectiveSpec.reads`."""
        ...

    @property
    def vocab_size(self) -> int:
        """Of the tokenizer."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the training text, the validation text and the tokenizer."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Saved with the run."""
        ...

    def feed(self, recipe: Recipe) -> Feed:
        """The batches of a recipe, from the start. Raises TextError where the text doesn't fill one."""
        ...

    def validation(self, recipe: Recipe) -> Validation | None:
        """The validation rows; None where no text was set aside."""
        ...

    def longest(self, recipe: Recipe) -> int:
        """The tokens of the longest sequence that the model will be given."""
        ...

    def load(self, recipe: Recipe) -> Workload:
        """What one average row asks of the model, to count FLOPs by."""
        ...

    def predicted_share(self, recipe: Recipe) -> float:
        """Of the places of the stack with a head: how many have a label."""
        ...


class PackedValidation:
    """Whole documents in rows."""

    def __init__(self, packed: Packed) -> None:
        self._packed, self.encoded = packed, packed.encoded
        self.document_nbytes = packed.encoded.document_nbytes

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        for numbers in self._packed.some_rows(batch_tokens, most_tokens):
            batch = self._packed.batch(numbers)
            yield batch, batch.source


@dataclass(frozen=True, eq=False)
class TextData:
    """Plain text: for causal language modelling, or with noise that the recipe's objective asks for."""

    train: EncodedCorpus
    held_out: EncodedCorpus | None = None
    tokenizer: Tokenizer | None = None

    @property
    def reads(self) -> Reads:
        return "text"

    @property
    def labels(self) -> None:
        return None

    @property
    def vocab_size(self) -> int:
        return self.train.vocab_size

    @property
    def fingerprint(self) -> str:
        parts = (self.train.fingerprint, self.held_out.fingerprint if self.held_out else "")
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def feed(self, recipe: Recipe) -> Feed:
        noise = noise_of(recipe, self.tokenizer)
        if noise is not None:
            rows = training_rows(self.train, recipe, noise)
            return NoisyFeed(rows, Sampler(rows.n_rows, recipe.batch_rows, recipe.seed), noise)
        packed = pack(self.train, recipe.seq_len, seed=recipe.seed)
        if recipe.memory is not None:
            return SegmentFeed(packed, LaneSampler(packed.n_rows, recipe.batch_rows, recipe.seed))
        return SampledFeed(packed, Sampler(packed.n_rows, recipe.batch_rows, recipe.seed))

    def validation(self, recipe: Recipe) -> Validation | None:
        return None if self.held_out is None else text_validation(self.held_out, self.tokenizer, recipe)

    def longest(self, recipe: Recipe) -> int:
        noise = noise_of(recipe, self.tokenizer)
        return noise.longest(recipe.seq_len) if noise else recipe.seq_len

    def load(self, recipe: Recipe) -> Workload:
        noise = noise_of(recipe, self.tokenizer)
        if noise is None:
            return Workload(batch=1, query=recipe.seq_len, past=recipe.memory or 0)
        return load_of(noise, training_rows(self.train, recipe, noise))

    def predicted_share(self, recipe: Recipe) -> float:
        return recipe.objective.predicted_share


def text_validation(text: EncodedCorpus, tokenizer: Tokenizer | None, recipe: Recipe) -> Validation:
    """The rows of a text by which a model of the recipe's objective is judged, with noise that is always the same."""
    noise = noise_of(recipe, tokenizer)
    if recipe.memory is not None:
        return SegmentValidation(text, recipe.seq_len, recipe.memory)
    if noise is None:
        return PackedValidation(pack_whole(text, recipe.seq_len))
    return NoisyValidation(validation_rows(text, recipe, noise), noise, recipe.seed)


class PairValidation:
    """Pairs, each a document: the bytes are the target's."""

    def __init__(self, corpus: ParallelCorpus, pairs: EncodedPairs) -> None:
        self.corpus, self._pairs = corpus, pairs
        self.document_nbytes = np.array([len(target.encode()) for _, target in corpus.pairs], dtype=np.int64)

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        longest = int(self._pairs.lengths.max())
        batches = length_batches(self._pairs.lengths, max(batch_tokens, longest))
        for numbers in some_of(batches, most_tokens, batch_tokens):
            batch = self._pairs.batch(numbers)
            yield batch, np.where(batch.target_mask, numbers[:, None], -1)


@dataclass(frozen=True, eq=False)
class PairData:
    """Pairs of texts, for sequence to sequence."""

    train: ParallelCorpus
    held_out: ParallelCorpus | None
    tokenizer: Tokenizer

    @property
    def reads(self) -> Reads:
        return "pairs"

    @property
    def labels(self) -> None:
        return None

    @cached_property
    def _pairs(self) -> EncodedPairs:
        return EncodedPairs(self.train, self.tokenizer)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        held_out = self.held_out.fingerprint if self.held_out else ""
        return hashlib.sha256(f"{self.train.fingerprint} {held_out} {self.tokenizer.fingerprint}".encode()).hexdigest()

    def feed(self, recipe: Recipe) -> Feed:
        lengths = self._pairs.lengths
        if int(lengths.max(axis=1).sum()) < recipe.batch_tokens:
            raise TextError(
                f"the {len(self._pairs)} pairs hold less than one batch of {recipe.batch_tokens} tokens; "
                "give more text or a smaller batch"
            )
        return SampledFeed(self._pairs, PairSampler(lengths, recipe.batch_tokens, recipe.seed))

    def validation(self, recipe: Recipe) -> Validation | None:
        return PairValidation(self.held_out, EncodedPairs(self.held_out, self.tokenizer)) if self.held_out else None

    def longest(self, recipe: Recipe) -> int:
        return int(self._pairs.lengths.max())

    def load(self, recipe: Recipe) -> Workload:
        source, target = np.ceil(self._pairs.lengths.mean(axis=0)).astype(int).tolist()
        return Workload(batch=1, query=target, memory=source)

    def predicted_share(self, recipe: Recipe) -> float:
        return recipe.objective.predicted_share
