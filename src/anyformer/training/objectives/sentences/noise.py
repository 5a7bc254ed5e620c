"""Rows of two runs of text, `[CLS] A [SEP] B [SEP]`, some tokens hidden: next-sentence prediction, sentence order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError, UsageError
from anyformer.text import NOT_PREDICTED, Batch, EncodedCorpus, Tokenizer, evenly_spread
from anyformer.text.noise import elsewhere, neighbours, passages, shortened
from anyformer.training.data.noise import Noise
from anyformer.training.data.vocabulary import ends_sentence, token_of_role
from anyformer.training.objectives.masked.loss import MaskedNoise
from anyformer.training.objectives.sentences import NextSentence, SentencePairs

_SPECIALS = 3  # a row's first token, and one after each run
Run = tuple[int, int, int]  # document, first token of its text, tokens


class SentenceRows(NamedTuple):
    """Rows of pairs, padded at the right; every field is [batch, token] but the last two, which are [batch, 1]."""

    input_ids: np.ndarray  # 0 at padding
    labels: np.ndarray  # at a hidden token, the token; else NOT_PREDICTED
    document: np.ndarray  # 1; 0 is padding
    positions: np.ndarray  # from 0; 0 at padding
    source: np.ndarray  # which document of the corpus, from 0; -1 at padding and special tokens
    token_types: np.ndarray  # 1 from the second run on, its last [SEP] included; else 0
    apart: np.ndarray  # 0: the runs stand so in the text; 1: the second is of another document, or came first
    labels_a_row: np.ndarray  # float64: hidden tokens of the whole batch by its rows


@dataclass(frozen=True, eq=False)
class Passages:
    """A text in passages of the length of a row: each is what one pair is made of. Counted as rows are."""

    encoded: EncodedCorpus
    seq_len: int
    document: np.ndarray  # [passage] int64
    start: np.ndarray  # [passage] int64, in the document without its delimiters
    length: np.ndarray  # [passage] int64
    texts: np.ndarray  # documents that have a token

    @classmethod
    def of(cls, text: EncodedCorpus, ends: np.ndarray, seq_len: int) -> Passages:
        """Raises TextError where there is no text for one pair."""
        found = [
            (document, start, length)
            for document in range(text.n_documents)
            for start, length in passages(_inner(text, document), ends, seq_len - _SPECIALS)
        ]
        if not found:
            raise TextError("no document has two tokens, to make a pair of runs of text from; give more text")
        document, start, length = np.array(found, dtype=np.int64).T
        return cls(text, seq_len, document, start, length, np.flatnonzero(np.diff(text.offsets) > 2))

    @property
    def n_rows(self) -> int:
        return len(self.document)

    def some_rows(self, batch_tokens: int, most_tokens: int | None) -> Iterator[np.ndarray]:
        """Numbers of all passages, or of about `most_tokens`, always the same ones, in batches of at most `batch_tokens`."""
        return evenly_spread(self.n_rows, self.seq_len, batch_tokens, most_tokens)

    def batch(self, rows: np.ndarray) -> tuple[Passages, np.ndarray]:
        """Which passages are meant: pairs are made of them as the noise draws."""
        return self, rows


@dataclass(frozen=True, eq=False)
class SentenceNoise(Noise):
    """Makes a pair of each passage, and hides some of its tokens."""

    said: SentencePairs
    masks: MaskedNoise
    cls: int
    sep: int
    ends: np.ndarray  # [id] bool: ends a sentence

    @classmethod
    def of(cls, said: SentencePairs, seq_len: int, tokenizer: Tokenizer) -> SentenceNoise:
        """Raises TextError for a tokenizer that lacks a special token, UsageError for rows that hold no pair."""
        least = _SPECIALS + 2
        if seq_len < least:
            raise UsageError(
                f"rows of {seq_len} tokens hold no pair of texts and {_SPECIALS} special tokens; "
                f"use a --seq-len of {least} or more"
            )
        opening, closing = (token_of_role(tokenizer, role, said) for role in ("cls_token", "sep_token"))
        return cls(said, MaskedNoise.of(said, seq_len, tokenizer), opening, closing, ends_sentence(tokenizer))

    def rows(self, text: EncodedCorpus, seq_len: int, seed: int | None = None) -> Passages:
        """The passages that pairs are made of. Raises TextError where a text has no other document to take a run from."""
        found = Passages.of(text, self.ends, seq_len)
        if isinstance(self.said, NextSentence) and len(found.texts) < 2:
            raise TextError(
                f"{self.said.kind} takes runs that do not follow from other documents, and a text of its own, for "
                "training or validation, has only one; give several files or lines of .jsonl, or use SentenceOrder"
            )
        return found

    def __call__(self, batch: tuple[Passages, np.ndarray], rngs: Sequence[np.random.Generator]) -> SentenceRows:
        where, numbers = batch
        fields = {name: np.zeros((len(numbers), where.seq_len), dtype=np.int64) for name in SentenceRows._fields[:6]}
        fields["source"][:] = -1
        apart = np.zeros((len(numbers), 1), dtype=np.int64)
        for i, (number, rng) in enumerate(zip(numbers, rngs, strict=True)):
            first, second, apart[i] = self._pair(where, int(number), rng)
            a, b = (_inner(where.encoded, document)[start : start + n] for document, start, n in (first, second))
            ids = np.concatenate([[self.cls], a, [self.sep], b, [self.sep]])
            fields["input_ids"][i, : len(ids)] = ids
            fields["document"][i, : len(ids)] = 1
            fields["positions"][i, : len(ids)] = np.arange(len(ids))
            fields["token_types"][i, len(a) + 2 : len(ids)] = 1
            fields["source"][i, 1 : len(a) + 1] = first[0]
            fields["source"][i, len(a) + 2 : len(ids) - 1] = second[0]
        hidden = self.masks(Batch(**{name: fields[name] for name in Batch._fields}), rngs)
        share = np.full(apart.shape, (hidden.labels != NOT_PREDICTED).sum() / len(numbers))
        return SentenceRows(*hidden, fields["token_types"], apart, share)

    def _pair(self, where: Passages, number: int, rng: np.random.Generator) -> tuple[Run, Run, bool]:
        """The two runs, and whether they do not stand so in the text."""
        document, start, length = (int(field[number]) for field in (where.document, where.start, where.length))
        ids = _inner(where.encoded, document)[start : start + length]
        if rng.random() < self.said.short:
            ids = ids[: shortened(ids, rng, self.ends)]
        first, second = ((document, start + at, n) for at, n in neighbours(ids, rng, self.ends))
        if rng.random() >= self.said.negatives:
            return first, second, False
        if not isinstance(self.said, NextSentence):
            return second, first, True
        drawn = int(rng.integers(len(where.texts) - 1))
        other = int(where.texts[drawn + (drawn >= np.searchsorted(where.texts, document))])
        return first, (other, *elsewhere(_inner(where.encoded, other), rng, self.ends, second[2])), True


def _inner(text: EncodedCorpus, document: int) -> np.ndarray:
    """A document's tokens [token] without its delimiters."""
    return text.document(document)[1:-1]
