"""Rows of texts whose middle may stand last, and the loss of the next token in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.text import Batch, Tokenizer
from anyformer.text.encoded import delimiters
from anyformer.text.filling import Marks, cut_at_characters, marks_of
from anyformer.text.noise import cut_in_three, middle_last
from anyformer.text.packing import PADDING, padded
from anyformer.training.data.noise import Noise
from anyformer.training.data.vocabulary import lacking
from anyformer.training.objectives.causal import CausalLM
from anyformer.training.objectives.causal.loss import CausalObjective
from anyformer.training.objectives.infilling import FillInTheMiddle
from anyformer.training.objectives.objective import Objective

MORE = 5  # tokens that the parts of a text may have beyond the text's own; it is cut at tokens where they had more


@dataclass(frozen=True, eq=False)
class FilledNoise(Noise):
    """Puts the middle of some texts last, by itself in each document of a row, behind the token that opens one."""

    said: FillInTheMiddle
    tokenizer: Tokenizer
    marks: Marks
    opening: int
    end: int

    @classmethod
    def of(cls, said: FillInTheMiddle, seq_len: int, tokenizer: Tokenizer) -> FilledNoise:
        """Raises TextError for a tokenizer without the marks, or without a token that ends a text."""
        if (marks := marks_of(tokenizer)) is None:
            raise lacking(tokenizer, said, *said.specials)
        return cls(said, tokenizer, marks, *delimiters(tokenizer))

    def __call__(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> Batch:
        """Rows as long as the longest of them."""
        rows = [self._row(batch, i, rng) for i, rng in enumerate(rngs)]
        fields = zip(zip(*rows, strict=True), PADDING, strict=True)
        return Batch(*(padded(field, padding)[0] for field, padding in fields))

    def _row(self, batch: Batch, i: int, rng: np.random.Generator) -> np.ndarray:
        """The fields of a row [field, token], without padding."""
        found = list[np.ndarray]()
        for number in range(1, int(batch.document[i].max()) + 1):
            here = batch.document[i] == number
            found.append(self._text(np.stack([field[i][here] for field in batch]), rng))
        return np.concatenate(found, axis=1)

    def _text(self, fields: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The fields [field, token] of one document of a row, as they were or with the middle last."""
        ids, _, document, _, source = fields
        opens = int(ids[0] == self.opening)
        if rng.random() >= self.said.rate or len(ids) == opens:
            return fields
        parts = cut_at_characters(self.tokenizer, ids[opens:], rng, first=bool(opens), more=MORE)
        parts = parts or cut_in_three(ids[opens:], rng)
        moved = middle_last(parts, self.marks, spm=bool(rng.random() < self.said.spm))
        whole = np.concatenate([ids[:opens], moved, [self.end]])
        n = len(whole) - 1
        return np.stack([whole[:-1], whole[1:], np.full(n, document[0]), np.arange(n), np.full(n, source[0])])

    def longest(self, seq_len: int) -> int:
        return seq_len + len(self.marks) + MORE


class InfillingObjective(Objective[FillInTheMiddle]):
    """For decoders; rows are `text.Batch`."""

    noise = FilledNoise.of

    def refuses(self) -> str | None:
        return CausalObjective(CausalLM(), self.spec).refuses()
