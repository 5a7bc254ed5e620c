"""Labelled text: a class or a number for each text or pair of texts, or a class for each of its words; and such text as ids."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from anyformer.errors import TextError, did_you_mean
from anyformer.text.corpus import set_aside
from anyformer.text.framing import Framed
from anyformer.text.packing import NOT_PREDICTED, padded
from anyformer.text.sources import reading, short, wrong
from anyformer.text.tokenizer import Tokenizer

N = TypeVar("N", int, float)
Kind = Literal["classes", "numbers", "words"]


class LabelledRow(NamedTuple):
    """One example and where it stands."""

    texts: tuple[str, ...]  # a text, a pair of texts, or the words of one
    label: str | float | tuple[str, ...] | None  # of words, one for each; None: nobody said
    line: int  # of its file, from 1


@dataclass(frozen=True)
class LabelledCorpus:
    """Examples of one file, whose labels are of one kind."""

    rows: tuple[LabelledRow, ...]
    kind: Kind
    where: str  # the file

    @cached_property
    def fingerprint(self) -> str:
        """sha256, in hexadecimal, of all texts and labels in order."""
        content = json.dumps([[row.texts, row.label] for row in self.rows])
        return hashlib.sha256(content.encode()).hexdigest()

    def texts(self) -> Iterator[str]:
        """All texts, to train a tokenizer on; of words, their lines."""
        for row in self.rows:
            yield from (" ".join(row.texts),) if self.kind == "words" else row.texts

    def counts(self) -> Counter[str]:
        """How often each class is said."""
        return Counter(label for _, label in self._classes())

    def _classes(self) -> Iterator[tuple[int, str]]:
        """(line, class) of every label that is one."""
        for row in self.rows:
            labels = row.label if isinstance(row.label, tuple) else (row.label,)
            yield from ((row.line, label) for label in labels if isinstance(label, str))

    def names(self, known: Sequence[str] | None = None) -> tuple[str, ...]:
        """The classes: those `known` already, in their order, else what the labels say, sorted, whole numbers by size.

        Raises TextError for a label that is not among those known, and for fewer than two classes.
        """
        found = self.counts()
        if known is not None:
            self.check(known)
            return tuple(known)
        if len(found) < 2:
            raise TextError(
                f"{self.where} has one class only, {short(next(iter(found)))}: there is nothing to tell apart; "
                "add examples of another"
            )
        numbers = all(as_number(name, int) is not None for name in found)
        return tuple(sorted(found, key=lambda name: (int(name) if numbers else 0, name)))

    def check(self, known: Sequence[str]) -> None:
        """Raise TextError, naming the line, for a label that is none of those known."""
        classes = set(known)
        for line, label in self._classes():
            if label not in classes:
                reason = f"the label {short(label)} is none of those trained on{did_you_mean(label, known)}"
                there = f"there are {short(list(known))[1:-1]}; correct it, or train on examples of it"
                raise wrong(self.where, line, f"{reason}; {there}")

    def as_kind(self, kind: Kind) -> LabelledCorpus:
        """The same with labels of another kind: whole numbers are classes, or numbers. Raises TextError."""
        if kind == self.kind:
            return self
        if (self.kind, kind) == ("classes", "numbers"):
            rows = [row._replace(label=_number(self.where, row)) for row in self.rows]
            return replace(self, rows=tuple(rows), kind=kind)
        (mine, objective), (wanted, _) = _KINDS[self.kind], _KINDS[kind]
        raise TextError(
            f"{self.where} has {mine}, and what is asked for needs {wanted}; use the objective {objective}, or other labels"
        )


# What labels of each kind are, and the objective for them.
_KINDS: dict[Kind, tuple[str, str]] = {
    "classes": ("a class for each text", "classification"),
    "numbers": ("a number for each text", "regression"),
    "words": ("a class for each word (tokens and labels)", "token-classification"),
}


def split_labelled(corpus: LabelledCorpus, share: float) -> tuple[LabelledCorpus, LabelledCorpus]:
    """(training, validation) examples; the second has its share of every class, or of the range of numbers.

    Raises TextError where one would be empty.
    """
    by = None if corpus.kind == "words" else attrgetter("label")
    train, held_out = set_aside(corpus.rows, share, "examples", by)
    return replace(corpus, rows=train), replace(corpus, rows=held_out)


def _number(where: str, row: LabelledRow) -> float:
    number = as_number(str(row.label), float)
    if number is None or not math.isfinite(number):
        raise wrong(where, row.line, f"the label {short(row.label)} is no number; regression needs one for each text")
    return number


def as_number(text: str, kind: Callable[[str], N]) -> N | None:
    """The number of a kind (`int`, `float`) that a text spells, or None."""
    try:
        return kind(text)
    except ValueError:
        return None


class LabelledRows(NamedTuple):
    """Inputs, padded at the right."""

    input_ids: np.ndarray  # int64 [batch, token], the tokenizer's padding where there is no token
    document: np.ndarray  # int64 [batch, token], 1 at tokens, 0 at padding
    types: np.ndarray  # int64 [batch, token], which text of a pair, as the tokenizer says
    shifted: np.ndarray  # int64 [batch, token], what a decoder beside an encoder reads: the same, one place later
    labels: np.ndarray  # int64 [batch, 1], or [batch, token] of words; NOT_PREDICTED where there is none
    # float32 [batch, 1], the numbers of which `labels` says only that they are there; else [batch, 0]
    values: np.ndarray


class EncodedLabelled:
    """Examples as ids, in memory. `lengths` is [example, 1] int64: tokens, special ones included; `cut` counts those cut.

    Raises TextError, with the remedy, for an example of more than `longest` tokens unless it may be cut (`truncate`), for a
    label that is none of `names`, and for a word that no token stands for.
    """

    def __init__(
        self,
        corpus: LabelledCorpus,
        tokenizer: Tokenizer,
        names: Sequence[str],
        longest: int | None = None,
        *,
        truncate: bool = False,
        remedy: str = "make rows longer (--seq-len)",
    ) -> None:
        if names:
            corpus.check(names)
        self.corpus, self._ids = corpus, {name: i for i, name in enumerate(names)}
        self._padding, self._start = tokenizer.padding or 0, tokenizer.start_of_answer or 0
        words = corpus.kind == "words"
        self.inputs: list[Framed] = []
        for row in corpus.rows:
            with reading(corpus.where, row.line):
                found = tokenizer.frame(row.texts, longest, words=words)
                if found.cut and not truncate:
                    said = f"it is {len(found.ids) + found.cut} tokens long, and a row holds {longest}"
                    raise TextError(f"{said}; {remedy}, or have what is too long cut (--truncate)")
            self.inputs.append(found)
        self.lengths = np.array([len(each.ids) for each in self.inputs], dtype=np.int64)[:, None]
        self.cut = sum(each.cut > 0 for each in self.inputs)
        self.sources = np.arange(len(self.inputs))

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def nbytes(self) -> np.ndarray:
        """[example] int64: UTF-8 bytes of the texts."""
        return np.array([sum(len(text.encode()) for text in row.texts) for row in self.corpus.rows], dtype=np.int64)

    def batch(self, numbers: np.ndarray) -> LabelledRows:
        """The examples of these numbers, in their order, padded to the longest."""
        chosen = [self.inputs[i] for i in numbers]
        rows = [self.corpus.rows[i] for i in numbers]
        ids, mask = padded([each.ids for each in chosen], self._padding)
        types, _ = padded([each.types for each in chosen], 0)
        values = np.zeros((len(rows), 0), dtype=np.float32)
        if self.corpus.kind == "words":
            labels = np.full(mask.shape, NOT_PREDICTED, dtype=np.int64)
            for i, (row, each) in enumerate(zip(rows, chosen, strict=True)):
                kept = sum(place >= 0 for place in each.firsts)  # what is cut is at the end
                labels[i, list(each.firsts[:kept])] = self._numbered(row)[:kept]
        else:
            labels = np.array([self._numbered(row) for row in rows], dtype=np.int64)
            if self.corpus.kind == "numbers":
                values = np.array([[row.label or 0.0] for row in rows], dtype=np.float32)
        shifted = np.concatenate((np.full_like(ids[:, :1], self._start), ids[:, :-1]), axis=1)
        return LabelledRows(ids, mask.astype(np.int64), types, shifted, labels, values)

    def _numbered(self, row: LabelledRow) -> list[int]:
        """The labels of an example: of words, one each."""
        if row.label is None:
            return [NOT_PREDICTED] * (len(row.texts) if self.corpus.kind == "words" else 1)
        if isinstance(row.label, tuple):
            return [self._ids[label] for label in row.label]
        return [0 if self.corpus.kind == "numbers" else self._ids[str(row.label)]]
