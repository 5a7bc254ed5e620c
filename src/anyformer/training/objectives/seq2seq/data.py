"""Pairs of texts, for sequence to sequence: sources that are read, targets that are written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np

from anyformer.errors import TextError
from anyformer.recipe import Reads, Recipe
from anyformer.spec import ModelSpec, Workload
from anyformer.text import EncodedPairs, PairSampler, ParallelCorpus, Tokenizer
from anyformer.training.data.examples import read_by_length
from anyformer.training.data.feed import Feed, Rows, SampledFeed, TrainingData, Validation


class PairValidation:
    """Pairs, each a document: the bytes are the target's."""

    def __init__(self, corpus: ParallelCorpus, pairs: EncodedPairs) -> None:
        self.corpus, self._pairs = corpus, pairs
        self.document_nbytes = np.array([len(target.encode()) for _, target in corpus.pairs], dtype=np.int64)

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[Rows, np.ndarray]]:
        for numbers in read_by_length(self._pairs.lengths, batch_tokens, most_tokens):
            batch = self._pairs.batch(numbers)
            yield batch, np.where(batch.target_mask, numbers[:, None], -1)


class PairData(TrainingData[ParallelCorpus, Tokenizer]):
    """Pairs of texts, for sequence to sequence."""

    reads: ClassVar[Reads] = "pairs"

    @cached_property
    def _pairs(self) -> EncodedPairs:
        return EncodedPairs(self.train, self.tokenizer)

    def feed(self, recipe: Recipe) -> Feed:
        lengths = self._pairs.lengths
        if int(lengths.max(axis=1).sum()) < recipe.batch_tokens:
            raise TextError(
                f"the {len(self._pairs)} pairs hold less than one batch of {recipe.batch_tokens} tokens; "
                "give more text or a smaller batch"
            )
        return SampledFeed(self._pairs.batch, PairSampler(lengths, recipe.batch_tokens, recipe.seed))

    def validation(self, recipe: Recipe) -> Validation | None:
        return PairValidation(self.held_out, EncodedPairs(self.held_out, self.tokenizer)) if self.held_out else None

    def longest(self, spec: ModelSpec, recipe: Recipe, seq_len: int) -> int:
        return int(self._pairs.lengths.max())

    def load(self, recipe: Recipe) -> Workload:
        source, target = np.ceil(self._pairs.lengths.mean(axis=0)).astype(int).tolist()
        return Workload(batch=1, query=target, memory=source)
