"""Labelled text as ids: one input an example, with its labels, in batches padded at the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anyformer.errors import TextError
from anyformer.text.framing import Framed
from anyformer.text.labelled import LabelledCorpus, LabelledRow
from anyformer.text.packing import NOT_PREDICTED
from anyformer.text.sources import wrong
from anyformer.text.tokenizer import Tokenizer


class LabelledRows(NamedTuple):
    """Inputs, padded at the right."""

    input_ids: np.ndarray  # int64 [batch, token], the tokenizer's padding where there is no token
    document: np.ndarray  # int64 [batch, token], 1 at tokens, 0 at padding
    types: np.ndarray  # int64 [batch, token], which text of a pair, as the tokenizer says
    shifted: np.ndarray  # int64 [batch, token], what a decoder beside an encoder reads: the same, one place later
    labels: np.ndarray  # int64 [batch, 1], or [batch, token] of words; NOT_PREDICTED where there is none
    values: (
        np.ndarray
    )  # float32 [batch, 1], the numbers of which `labels` says only that they are there; else [batch, 0]


class EncodedLabelled:
    """Examples as ids, in memory. `lengths` is [example, 1] int64: tokens, special ones included; `cut` counts those cut.

    Raises TextError for an example of more than `longest` tokens unless it may be cut (`truncate`), for a label that is
    none of `names`, and for a word that no token stands for.
    """

    def __init__(
        self,
        corpus: LabelledCorpus,
        tokenizer: Tokenizer,
        names: Sequence[str],
        longest: int | None = None,
        *,
        truncate: bool = False,
    ) -> None:
        if names:
            corpus.check(names)
        self.corpus, self._ids = corpus, {name: i for i, name in enumerate(names)}
        self._padding, self._start = tokenizer.padding or 0, tokenizer.start_of_answer or 0
        words = corpus.kind == "words"
        self.inputs: list[Framed] = []
        for row in corpus.rows:
            try:
                found = tokenizer.frame(row.texts, longest, words=words)
            except TextError as error:
                raise wrong(corpus.where, row.line, str(error)) from None
            if found.cut and not truncate:
                n = len(found.ids) + found.cut
                remedy = "make rows longer (--seq-len), or have what is too long cut (--truncate)"
                raise wrong(corpus.where, row.line, f"it is {n} tokens long, and a row holds {longest}; {remedy}")
            self.inputs.append(found)
        self.lengths = np.array([len(each.ids) for each in self.inputs], dtype=np.int64)[:, None]
        self.cut = sum(each.cut > 0 for each in self.inputs)

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, numbers: np.ndarray) -> LabelledRows:
        """The examples of these numbers, in their order, padded to the longest."""
        chosen = [self.inputs[i] for i in numbers]
        rows = [self.corpus.rows[i] for i in numbers]
        mask = np.arange(max(len(each.ids) for each in chosen)) < self.lengths[numbers]
        ids, types = np.full(mask.shape, self._padding, dtype=np.int64), np.zeros(mask.shape, dtype=np.int64)
        ids[mask] = np.concatenate([each.ids for each in chosen])
        types[mask] = np.concatenate([each.types for each in chosen])
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
