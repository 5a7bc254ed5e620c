"""Parallel text: pairs of lines, in batches of like length, for sequence-to-sequence models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.text.corpus import set_aside
from anyformer.text.encoded import delimiters
from anyformer.text.packing import NOT_PREDICTED, padded, shuffled
from anyformer.text.sampler import refuse_other
from anyformer.text.sources import read_text
from anyformer.text.tokenizer import Tokenizer

# Lengths are multiplied by up to this much before sorting, so that batches have other members every epoch.
_BLUR = 0.1


@dataclass(frozen=True)
class ParallelCorpus:
    """Pairs of lines, none of them blank; `dropped` counts the pairs left out because one side was."""

    pairs: tuple[tuple[str, str], ...]
    dropped: int = 0

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hexadecimal, of all pairs in order; no line holds a line end."""
        return hashlib.sha256("\n".join(line for pair in self.pairs for line in pair).encode()).hexdigest()

    def texts(self) -> Iterator[str]:
        """Both sides, to train one tokenizer for both on."""
        return (line for pair in self.pairs for line in pair)


class PairBatch(NamedTuple):
    """Sentences and translations, padded at the right; every field is [batch, token]."""

    source_ids: np.ndarray  # int64 `s1 … sn` between what is `around_source`; 0 at padding
    source_mask: np.ndarray  # bool, True at tokens
    target_ids: np.ndarray  # int64, what the decoder reads: `start t1 … tn`, 0 at padding
    target_mask: np.ndarray  # bool, True at tokens
    labels: np.ndarray  # int64, what it predicts: `t1 … tn end`, NOT_PREDICTED at padding; t1 may be a language


def read_parallel(source: str | Path, target: str | Path) -> ParallelCorpus:
    """The pairs of two files (plain or .gz) of equally many lines; a pair with a blank line is dropped and counted.

    Raises TextError where a file is missing, empty or not UTF-8, the counts differ, or no pair is left.
    """
    sides = [read_lines(Path(path)) for path in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise TextError(
            f"{source} has {len(sides[0])} lines but {target} has {len(sides[1])}; line n of one must translate line n "
            f"of the other"
        )
    pairs = tuple((left, right) for left, right in zip(*sides, strict=True) if left.strip() and right.strip())
    if not pairs:
        raise TextError(f"{source} and {target} hold no pair of lines with text on both sides")
    return ParallelCorpus(pairs, dropped=len(sides[0]) - len(pairs))


def split_pairs(corpus: ParallelCorpus, share: float) -> tuple[ParallelCorpus, ParallelCorpus]:
    """(training, validation) pairs, the second evenly spread. Raises TextError where one would be empty."""
    train, held_out = set_aside(corpus.pairs, share, "pairs")
    return ParallelCorpus(train), ParallelCorpus(held_out)


class EncodedPairs:
    """Pairs as ids, in memory. `lengths` is [pair, 2] int64: tokens of source and target, special ones included."""

    def __init__(self, corpus: ParallelCorpus, tokenizer: Tokenizer) -> None:
        _, end = delimiters(tokenizer)
        self._start, *first = tokenizer.answer_opening
        around = [
            [np.array(ids, tokenizer.dtype) for ids in side] for side in (tokenizer.around_source, (first, [end]))
        ]
        ids = [
            np.concatenate((before, tokenizer.array(line), behind))
            for pair in corpus.pairs
            for (before, behind), line in zip(around, pair, strict=True)
        ]
        self.source, self.target = ids[0::2], ids[1::2]
        self.lengths = np.array([len(line) for line in ids], dtype=np.int64).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, pairs: np.ndarray) -> PairBatch:
        """The pairs of these numbers, in their order, padded to the longest of each side."""
        source_ids, source_mask = padded([self.source[pair] for pair in pairs], 0)
        labels, target_mask = padded([self.target[pair] for pair in pairs], NOT_PREDICTED)
        target_ids = np.where(target_mask, np.roll(labels, 1, axis=1), 0)
        target_ids[:, 0] = self._start
        return PairBatch(source_ids, source_mask, target_ids, target_mask, labels)


def length_batches(lengths: np.ndarray, batch_tokens: int, *seed: int) -> list[np.ndarray]:
    """Every pair once, in batches of like length that pad to at most `batch_tokens` tokens on either side.

    With a `seed` the batches come in random order and lengths are blurred before they are sorted; without one, shortest
    first. Raises TextError where a single pair is longer than a batch.
    """
    longest = lengths.max(axis=1)
    if longest.max() > batch_tokens:
        raise TextError(
            f"pair {int(longest.argmax()) + 1} is {int(longest.max())} tokens long, but a batch holds {batch_tokens}; "
            "make the batch larger or remove the pair"
        )
    order = np.argsort(
        longest * (1.0 + _BLUR * shuffled(len(longest), *seed) / len(longest)) if seed else longest, kind="stable"
    )
    batches, begin, widest = [], 0, 0
    for place, length in enumerate(longest[order].tolist()):
        widest = max(widest, length)
        if (place - begin + 1) * widest > batch_tokens:
            batches.append(order[begin:place])
            begin, widest = place, length
    batches.append(order[begin:])
    return [batches[i] for i in shuffled(len(batches), *seed, 1)] if seed else batches


def some_of(batches: Sequence[np.ndarray], most_tokens: int | None, batch_tokens: int) -> list[np.ndarray]:
    """All batches, or about `most_tokens` in batches of so many: one at least, evenly spread, always the same."""
    wanted = len(batches) if most_tokens is None else min(len(batches), max(1, most_tokens // batch_tokens))
    return [batches[i * len(batches) // wanted] for i in range(wanted)]


class PairSampler:
    """An endless stream of batches of pair numbers: every pair once an epoch, each epoch batched anew.

    An epoch's batches are a function of (seed, epoch), so the state is two numbers.
    """

    def __init__(self, lengths: np.ndarray, batch_tokens: int, seed: int) -> None:
        self._lengths, self.batch_tokens, self.seed = lengths, batch_tokens, seed
        self.epoch, self.index = 0, 0
        self._batches = length_batches(lengths, batch_tokens, seed, 0)

    def __iter__(self) -> PairSampler:
        return self

    def __next__(self) -> np.ndarray:
        if self.index == len(self._batches):
            self.epoch, self.index = self.epoch + 1, 0
            self._batches = length_batches(self._lengths, self.batch_tokens, self.seed, self.epoch)
        self.index += 1
        return self._batches[self.index - 1]

    def skip(self, steps: int) -> None:
        """Go on as if so many batches had been drawn."""
        for _ in range(steps):
            next(self)

    def epochs(self, steps: int) -> float:
        """About how often so many batches go through all pairs."""
        return steps / len(self._batches)

    def state(self) -> dict[str, int]:
        """What `restore` needs, as JSON."""
        fixed = {"seed": self.seed, "n_pairs": len(self._lengths), "batch_tokens": self.batch_tokens}
        return {"epoch": self.epoch, "index": self.index, **fixed}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. Raises TextError, naming the difference, for that of another stream."""
        refuse_other(self.state(), state, moving=("epoch", "index"))
        self.epoch, self.index = int(state["epoch"]), int(state["index"])
        self._batches = length_batches(self._lengths, self.batch_tokens, self.seed, self.epoch)


def read_lines(path: Path) -> list[str]:
    """The lines of a file (plain or .gz), without their ends. Raises TextError where it is missing, empty or not UTF-8."""
    if not path.is_file():
        raise TextError(f"no parallel text at {path}: it is not a file")
    if not (text := read_text(path)):
        raise TextError(f"{path} is empty; give a file with a text a line")
    lines = text.split("\n")  # str.splitlines would also cut at U+2028 and form feeds, inside a sentence
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
