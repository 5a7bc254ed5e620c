"""Labelled text: a class or a number for each text or pair of texts, or a class for each of its words."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from anyformer.errors import TextError, did_you_mean
from anyformer.text.held_out import held_out_places
from anyformer.text.sources import wrong

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
        each = (row.label if isinstance(row.label, tuple) else (row.label,) for row in self.rows)
        return Counter(label for labels in each for label in labels if isinstance(label, str))

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
                f"{self.where} has one class only, {next(iter(found))!r}: there is nothing to tell apart; "
                "add examples of another"
            )
        numbers = all(whole(name) is not None for name in found)
        return tuple(sorted(found, key=whole if numbers else None))  # type: ignore[arg-type]

    def check(self, known: Sequence[str]) -> None:
        """Raise TextError, naming the line, for a label that is none of those known."""
        classes = set(known)
        for row in self.rows:
            for label in row.label if isinstance(row.label, tuple) else (row.label,):
                if isinstance(label, str) and label not in classes:
                    raise wrong(
                        self.where,
                        row.line,
                        f"the label {label!r} is none of those trained on{did_you_mean(label, classes)}; "
                        f"there are {', '.join(known[:20])}; correct it, or train on examples of it",
                    )

    def as_kind(self, kind: Kind) -> LabelledCorpus:
        """The same with labels of another kind: whole numbers are classes, or numbers. Raises TextError."""
        if kind == self.kind:
            return self
        if (self.kind, kind) == ("classes", "numbers"):
            rows = [row._replace(label=_number(self.where, row)) for row in self.rows]
            return replace(self, rows=tuple(rows), kind=kind)
        wanted = {"classes": "classification", "numbers": "regression", "words": "token-classification"}
        raise TextError(
            f"{self.where} has {_SAYS[self.kind]}, and what is asked for needs {_SAYS[kind]}; "
            f"use the objective {wanted[self.kind]}, or other labels"
        )


_SAYS = {
    "classes": "a class for each text",
    "numbers": "a number for each text",
    "words": "a class for each word (tokens and labels)",
}


def split_labelled(corpus: LabelledCorpus, share: float) -> tuple[LabelledCorpus, LabelledCorpus]:
    """(training, validation) examples; the second has its share of every class, or of the range of numbers.

    Raises TextError where one would be empty.
    """
    places, numbers = held_out_places(len(corpus.rows), share, "examples"), range(len(corpus.rows))
    if corpus.kind != "words":
        numbers = sorted(numbers, key=lambda i: corpus.rows[i].label)  # type: ignore[arg-type, return-value]
    unseen = {numbers[place] for place in places}
    parts = ([row for i, row in enumerate(corpus.rows) if (i in unseen) is held_out] for held_out in (False, True))
    train, held_out = (replace(corpus, rows=tuple(rows)) for rows in parts)
    return train, held_out


def _number(where: str, row: LabelledRow) -> float:
    number = fraction(str(row.label))
    if number is None or not math.isfinite(number):
        raise wrong(where, row.line, f"the label {row.label!r} is no number; regression needs one for each text")
    return number


def whole(text: str) -> int | None:
    """The whole number that a text spells, or None."""
    try:
        return int(text)
    except ValueError:
        return None


def fraction(text: str) -> float | None:
    """The number that a text spells, or None."""
    try:
        return float(text)
    except ValueError:
        return None
