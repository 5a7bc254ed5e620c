"""Plain text to train and to validate on, with the noise that an objective asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text import (
    EncodedCorpus,
    Packed,
    Sampler,
    StreamSampler,
    Tokenizer,
    pack,
    pack_whole,
)
from anyformer.training.data.feed import Feed, Rows, SampledFeed, Validation
from anyformer.training.data.noise import NoisyFeed, NoisyValidation, load_of
from anyformer.training.data.segments import SegmentFeed, SegmentValidation
from anyformer.training.objectives.objective import noise_of


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
            rows = noise.rows(self.train, recipe.seq_len, recipe.seed)
            return NoisyFeed(rows, Sampler(rows.n_rows, recipe.batch_rows, recipe.seed), noise)
        packed = pack(self.train, recipe.seq_len, seed=recipe.seed)
        if recipe.memory is not None:
            return SegmentFeed(packed, StreamSampler(packed.n_rows, recipe.batch_rows, recipe.seed))
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
        return load_of(noise, noise.rows(self.train, recipe.seq_len, recipe.seed))

    def predicted_share(self, recipe: Recipe) -> float:
        return recipe.objective.predicted_share


def text_validation(text: EncodedCorpus, tokenizer: Tokenizer | None, recipe: Recipe) -> Validation:
    """The rows of a text by which a model of the recipe's objective is judged, with noise that is always the same."""
    noise = noise_of(recipe, tokenizer)
    if recipe.memory is not None:
        return SegmentValidation(text, recipe.seq_len, recipe.memory)
    if noise is None:
        return PackedValidation(pack_whole(text, recipe.seq_len))
    return NoisyValidation(noise.rows(text, recipe.seq_len), noise, recipe.seed)
