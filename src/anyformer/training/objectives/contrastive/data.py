"""Pairs of texts to be told apart: what a run reads whose objective is contrastive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.recipe import Reads, Recipe
from anyformer.spec import Workload
from anyformer.text import ParallelCorpus, Sampler, Tokenizer, some_of
from anyformer.text.packing import padded
from anyformer.training.data.examples import ExampleValidation, FramedData, cuts
from anyformer.training.data.feed import Feed, SampledFeed

SIDES = ("source", "target")


class ContrastRows(NamedTuple):
    """Texts and their counterparts, padded at the right to one width."""

    source_ids: np.ndarray  # [batch, token] int64, as the tokenizer frames a text; 0 at padding
    target_ids: np.ndarray  # the same
    source_mask: np.ndarray  # [batch, token] bool, True at tokens
    target_mask: np.ndarray  # the same
    group: np.ndarray  # [batch, 2] int64, a number for each different text of either side: twins are no negatives
    labels: np.ndarray  # [batch, 1] int64, which target of the batch is the source's: its own row's

    def chance(self) -> np.ndarray:
        """Nats [batch, 1] of guessing among the targets that could be the source's."""
        twins = (self.group[:, None] == self.group[None]).any(-1)
        return np.log(len(twins) - twins.sum(1, keepdims=True) + 1)


class ContrastPairs:
    """Pairs as ids, in memory. `lengths` is [pair, 2] int64: tokens of source and target, special ones included."""

    def __init__(self, corpus: ParallelCorpus, tokenizer: Tokenizer, longest: int, truncate: bool) -> None:
        """Raises TextError for a text of more than `longest` tokens, unless they are to be cut."""
        framed = [tokenizer.frame((line,), longest) for line in corpus.texts()]
        cut = next((i for i, one in enumerate(framed) if one.cut), None)
        if cut is not None and not truncate:
            n = len(framed[cut].ids) + framed[cut].cut
            raise TextError(
                f"the {SIDES[cut % 2]} of pair {cut // 2 + 1} is {n} tokens long, and a row has {longest}; "
                "make rows longer (--seq-len), or have what is too long cut (--truncate)"
            )
        self.cut = sum(one.cut > 0 for one in framed)  # texts
        self._ids = [one.ids for one in framed]
        self.lengths = np.array([len(ids) for ids in self._ids], dtype=np.int64).reshape(-1, 2)
        self.sources = np.arange(len(self.lengths))
        self.nbytes = np.array([len(target.encode()) for _, target in corpus.pairs], dtype=np.int64)
        numbers: tuple[dict[str, int], ...] = ({}, {})
        groups = [
            [known.setdefault(line, len(known)) for known, line in zip(numbers, pair, strict=True)]
            for pair in corpus.pairs
        ]
        self._groups = np.array(groups, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, numbers: np.ndarray) -> ContrastRows:
        """The pairs of these numbers, in their order."""
        ids, mask = padded([self._ids[2 * pair + side] for side in (0, 1) for pair in numbers], 0)
        (source, target), (source_mask, target_mask) = np.split(ids, 2), np.split(mask, 2)
        labels = np.arange(len(numbers), dtype=np.int64)[:, None]
        return ContrastRows(source, target, source_mask, target_mask, self._groups[numbers], labels)


def batch_pairs(recipe: Recipe, longest: int) -> int:
    """How many pairs a batch has, its longest text being of that many tokens. Raises TextError for fewer than two."""
    n = recipe.batch_tokens // longest
    if n < 2:
        raise TextError(
            f"a batch of {recipe.batch_tokens} tokens holds {n} pairs of up to {longest}, and one alone has nothing to be "
            "told apart from; make the batch larger (--batch-tokens), or texts shorter (--seq-len and --truncate)"
        )
    return n


class ContrastValidation(ExampleValidation[ContrastPairs]):
    """Every pair once, in batches of (nearly) equally many: those of training, so that both losses are of one task."""

    def __init__(self, pairs: ContrastPairs, size: int) -> None:
        super().__init__(pairs)
        if len(pairs) < 2:
            raise TextError("a single pair to validate on has nothing to be told apart from; give more")
        self.size = min(size, len(pairs))

    def batches(self, batch_tokens: int, most_tokens: int | None = None) -> Iterator[tuple[ContrastRows, np.ndarray]]:
        """(rows, the pair of each label); a batch is what the loss is about, so `batch_tokens` changes nothing."""
        batches = np.array_split(self.examples.sources, -(-len(self.examples) // self.size))
        for numbers in some_of(batches, most_tokens, self.size * int(self.examples.lengths.max())):
            yield self.examples.batch(numbers), numbers[:, None]


class ContrastData(FramedData[ParallelCorpus, ContrastPairs]):
    """Pairs of texts that belong together."""

    reads: ClassVar[Reads] = "pairs"

    def encode(self, corpus: ParallelCorpus, recipe: Recipe) -> ContrastPairs:
        return ContrastPairs(corpus, self.tokenizer, recipe.seq_len, cuts(recipe))

    def feed(self, recipe: Recipe) -> Feed:
        pairs, n = self.encoded(recipe), self._batch(recipe)
        if len(pairs) < n:
            raise TextError(f"the {len(pairs)} pairs are less than one batch of {n}; give more, or a smaller batch")
        return SampledFeed(pairs.batch, Sampler(len(pairs), n, recipe.seed))

    def validation(self, recipe: Recipe) -> ContrastValidation | None:
        unseen = self.unseen(recipe)
        return None if unseen is None else ContrastValidation(unseen, self._batch(recipe))

    def load(self, recipe: Recipe) -> Workload:
        return Workload(batch=2, query=self.mean_length(recipe))

    def predicted_share(self, recipe: Recipe) -> float:
        return 1 / self.load(recipe).tokens

    def _batch(self, recipe: Recipe) -> int:
        return batch_pairs(recipe, int(self.encoded(recipe).lengths.max()))
