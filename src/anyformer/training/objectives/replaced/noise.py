"""Rows for replaced-token detection: hidden tokens, and the number that each one's replacement will be drawn by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anyformer.text import NOT_PREDICTED, Batch, Tokenizer
from anyformer.text.noise import masked
from anyformer.training.data.noise import Noise, check_hides
from anyformer.training.data.vocabulary import special, token_of_role
from anyformer.training.objectives.replaced import ReplacedTokens


class ReplacedRows(NamedTuple):
    """Rows of tokens; fields are [batch, token] but for the last.

    What replaces a hidden token is known when the generator has spoken; all that chance has to do with it is in `draw`.
    """

    input_ids: np.ndarray  # as the generator sees them
    labels: np.ndarray  # the text's own tokens, NOT_PREDICTED at padding: each is judged
    document: np.ndarray
    positions: np.ndarray
    source: np.ndarray
    hidden: np.ndarray  # bool: the generator fills it in
    draw: np.ndarray  # float32 from 0 to below 1: where in the generator's distribution the token lies
    judged_per_hidden: np.ndarray  # [batch, 1]: tokens of the whole batch by hidden ones, the same in each row


@dataclass(frozen=True, eq=False)
class ReplacedNoise(Noise):
    """Hides tokens of each row, never special ones; documents stay apart as they were packed."""

    said: ReplacedTokens
    mask: int
    special: np.ndarray  # [id] bool

    @classmethod
    def of(cls, said: ReplacedTokens, seq_len: int, tokenizer: Tokenizer) -> ReplacedNoise:
        """Raises TextError for a tokenizer without a mask, UsageError where nothing would be hidden."""
        check_hides(said, said.rate, seq_len)
        return cls(said, token_of_role(tokenizer, "mask_token", said), special(tokenizer))

    def __call__(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> ReplacedRows:
        inputs, hidden = np.empty_like(batch.input_ids), np.empty(batch.labels.shape, dtype=bool)
        draw = np.empty(batch.labels.shape, dtype=np.float32)
        for i, rng in enumerate(rngs):
            ids, real = batch.input_ids[i], batch.document[i] > 0
            inputs[i], labels = masked(
                ids,
                rng,
                mask=self.mask,
                replacements=np.empty(0, dtype=np.int64),
                rate=self.said.rate,
                mask_share=self.said.mask_share,
                random_share=0.0,
                spared=~real | self.special[ids],
            )
            hidden[i] = labels != NOT_PREDICTED
            draw[i] = rng.random(len(ids), dtype=np.float32)
        judged = batch.document > 0
        share = np.full((len(inputs), 1), judged.sum() / max(1, hidden.sum()))
        originals = np.where(judged, batch.input_ids, NOT_PREDICTED)
        return ReplacedRows(inputs, originals, batch.document, batch.positions, batch.source, hidden, draw, share)
