"""Sources and targets made of a text: each document of a row becomes what is read and what is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError, UsageError
from anyformer.spec import Workload
from anyformer.text import NOT_PREDICTED, Batch, Tokenizer
from anyformer.text import noise as noises
from anyformer.text.encoded import delimiters
from anyformer.text.noise import Example
from anyformer.training.data.noise import Noise, check_hides
from anyformer.training.data.vocabulary import ends_sentence, lacking, specials, token_of_role
from anyformer.training.objectives.denoising import UL2, Denoising, PrefixLM, RestoredText, SpanCorruption

Corrupt = Callable[[np.ndarray, np.random.Generator], Example]


class NoisyPairs(NamedTuple):
    """Rows of sources and targets, padded at the right; every field is int64, [batch, token] of its side.

    A document's source and target have one number; those of other numbers never see each other.
    """

    source_ids: np.ndarray  # 0 at padding
    source_document: np.ndarray  # from 1; 0 is padding
    target_ids: np.ndarray  # what the decoder reads: the token that begins an answer, then all labels but the last
    target_document: np.ndarray
    labels: np.ndarray  # NOT_PREDICTED at padding
    source: np.ndarray  # of each label: which document of the corpus, from 0; -1 at padding


@dataclass(frozen=True, eq=False)
class PairNoise(Noise):
    """Corrupts each document of a row by itself, without the token that opens it; source and target end with `end`."""

    corrupt: Corrupt
    most: int  # tokens that the source or target of a row has, its end included
    as_one: int  # the most that a decoder reads of both as one sequence
    opening: int
    begin: int  # what the decoder reads first
    end: int

    @classmethod
    def of(cls, corrupt: Corrupt, most: int, as_one: int, tokenizer: Tokenizer) -> PairNoise:
        """Raises TextError for a tokenizer that names no token that ends a text."""
        (opening, end), begin = delimiters(tokenizer), tokenizer.start_of_answer
        assert begin is not None  # what ends a text would begin it
        return cls(corrupt, most, as_one, opening, begin, end)

    def __call__(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> NoisyPairs:
        rows = [self._row(batch, i, rng) for i, rng in enumerate(rngs)]
        source_ids, source_document, labels, target_document, source = (
            _padded(list(side), padding)
            for side, padding in zip(zip(*rows, strict=True), (0, 0, NOT_PREDICTED, 0, -1), strict=True)
        )
        first = np.diff(target_document, axis=1, prepend=0) != 0
        target_ids = np.where(first, self.begin, np.roll(labels, 1, axis=1))
        target_ids[target_document == 0] = 0
        return NoisyPairs(source_ids, source_document, target_ids, target_document, labels, source)

    def _row(self, batch: Batch, i: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        parts: list[list[np.ndarray]] = [[np.zeros(0, dtype=np.int64)] for _ in range(5)]
        for number in range(1, int(batch.document[i].max()) + 1):
            here = batch.document[i] == number
            ids = batch.input_ids[i][here]
            ids = ids[1:] if ids[0] == self.opening else ids
            if not len(ids):
                continue
            example = self.corrupt(ids, rng)
            source, target = (np.append(side, self.end) for side in example)
            row = (source, _all(number, source), target, _all(number, target), _all(batch.source[i][here][0], target))
            for part, piece in zip(parts, row, strict=True):
                part.append(piece)
        return tuple(np.concatenate(part) for part in parts)

    def longest(self, seq_len: int) -> int:
        return self.most

    def joint(self, seq_len: int) -> int:
        return self.as_one

    def load(self, rows: NoisyPairs) -> Workload:
        n = len(rows.labels)
        source, target = (-(-int((side > 0).sum()) // n) for side in (rows.source_document, rows.target_document))
        return Workload(batch=1, query=target, memory=source)


def _all(value: int, like: np.ndarray) -> np.ndarray:
    return np.full(len(like), value, dtype=np.int64)


def _padded(rows: list[np.ndarray], padding: int) -> np.ndarray:
    result = np.full((len(rows), max(1, *map(len, rows))), padding, dtype=np.int64)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


@singledispatch
def noise_for(said: RestoredText, n: int, tokenizer: Tokenizer) -> PairNoise:
    """The noise of each kind. Raises TextError for a tokenizer that lacks a token, UsageError where nothing would be hidden."""
    raise UsageError(f"objective {said.kind} has no noise; give its own class a `noise`")


@noise_for.register
def span_corruption(said: SpanCorruption, n: int, tokenizer: Tokenizer) -> PairNoise:
    """T5's. Raises TextError where sentinels are missing."""
    check_hides(said, said.rate, n)
    known = sentinels(said, tokenizer, n_spans(said.rate, said.mean_length, n) + 1)
    corrupt = partial(noises.span_corrupted, sentinels=known, rate=said.rate, mean_length=said.mean_length)
    joint = _joint_spans(said.rate, said.mean_length, n)
    return PairNoise.of(corrupt, _longest_spans(said.rate, n), joint, tokenizer)


@noise_for.register
def prefix_lm(said: PrefixLM, n: int, tokenizer: Tokenizer) -> PairNoise:
    """A text cut in two. Raises UsageError for rows that cannot be."""
    if n < 2:
        raise UsageError(f"rows of {n} token cannot be cut in two; use a --seq-len of 2 or more")
    return PairNoise.of(noises.prefix, n + 1, n + 1, tokenizer)


@noise_for.register
def denoising(said: Denoising, n: int, tokenizer: Tokenizer) -> PairNoise:
    """BART's. Raises TextError for a tokenizer without a mask."""
    if not said.permute_sentences and not said.rotate:
        check_hides(said, max(said.delete_rate, said.infill_rate), n)
    mask, ends = token_of_role(tokenizer, "mask_token", said), ends_sentence(tokenizer)

    def corrupt(ids: np.ndarray, rng: np.random.Generator) -> Example:
        noisy = ids
        if said.permute_sentences:
            noisy = noises.permuted_sentences(noisy, rng, ends=ends[noisy])
        if said.rotate:
            noisy = noises.rotated(noisy, rng)
        if said.delete_rate:
            noisy = noises.deleted(noisy, rng, rate=said.delete_rate)
        if said.infill_rate:
            noisy = noises.infilled(noisy, rng, mask=mask, rate=said.infill_rate, mean_length=said.mean_length)
        return Example(noisy, ids)

    longest = n + round(said.infill_rate * n) + 1  # a span of no tokens inserts a mask, at most as many as were to go
    return PairNoise.of(corrupt, longest, longest + n, tokenizer)


@noise_for.register
def ul2(said: UL2, n: int, tokenizer: Tokenizer) -> PairNoise:
    """UL2's mixture. Raises TextError where sentinels or tokens for modes are missing."""
    spans = [n_spans(one.rate, one.mean_length or n, n) + 1 for one in said.denoisers]
    for one in said.denoisers:
        check_hides(said, one.rate, n)
    sentinels_, known = sentinels(said, tokenizer, max(spans)), specials(tokenizer)
    modes = {mode: known.get(f"[{mode}]") for mode in dict.fromkeys(one.mode for one in said.denoisers)}
    for mode, token in modes.items():
        if said.tell and token is None:
            raise lacking(tokenizer, said, f"[{mode}]")

    def corrupt(ids: np.ndarray, rng: np.random.Generator) -> Example:
        one = said.denoisers[int(rng.integers(len(said.denoisers)))]
        mode = modes[one.mode] if said.tell else None
        return noises.denoised(ids, rng, sentinels=sentinels_, rate=one.rate, mean_length=one.mean_length, mode=mode)

    longest = 1 + max(_longest_spans(one.rate, n) for one in said.denoisers)
    joint = 1 + max(_joint_spans(one.rate, one.mean_length or n, n) for one in said.denoisers)
    return PairNoise.of(corrupt, longest, joint, tokenizer)


def sentinels(said: RestoredText, tokenizer: Tokenizer, needed: int) -> list[int]:
    """The ids of `<extra_id_0>`, `<extra_id_1>` … as far as the tokenizer has them. Raises TextError for too few."""
    known, found = specials(tokenizer), list[int]()
    while f"<extra_id_{len(found)}>" in known:
        found.append(known[f"<extra_id_{len(found)}>"])
    if len(found) < needed:
        name = f"<extra_id_{len(found)}>"
        if not found:
            raise lacking(tokenizer, said, name)
        raise TextError(
            f"{said.kind} needs {needed} sentinels for rows of this length and the tokenizer has {len(found)}, without "
            f"{name}; use shorter rows (--seq-len), longer spans, or a tokenizer with more"
        )
    return found


def n_spans(rate: float, mean_length: float, n: int) -> int:
    """How many spans a text of n tokens has at most."""
    return max(1, round(round(rate * n) / mean_length))


def _longest_spans(rate: float, n: int) -> int:
    noisy = max(1, round(rate * n))
    return max(n, 2 * noisy + 1) + 1


def _joint_spans(rate: float, mean_length: float, n: int) -> int:
    """The tokens of a source and a target as one sequence: a sentinel for each span in both, one more in the target."""
    return n + 2 * n_spans(rate, mean_length, n) + 2
