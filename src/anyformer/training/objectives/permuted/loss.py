"""Rows in a random order, with blanks that ask for the last of it: XLNet's two streams as one of n + m tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from anyformer.spec import Workload
from anyformer.text import NOT_PREDICTED, Batch, Tokenizer
from anyformer.text.noise import permuted
from anyformer.text.packing import padded
from anyformer.training.data.feed import Rows
from anyformer.training.data.noise import Noise, check_hides
from anyformer.training.objectives.architecture import has_two_streams, no_vocabulary_head
from anyformer.training.objectives.objective import Objective, on
from anyformer.training.objectives.permuted import PermutedLM


class PermutedRows(NamedTuple):
    """Rows of tokens, then their blanks, then padding; every field is int64 [batch, token]."""

    input_ids: np.ndarray  # 0 at blanks and padding
    labels: np.ndarray  # at a blank, the token that it asks for; else NOT_PREDICTED
    document: np.ndarray  # which piece of its row, from 1; 0 is padding
    positions: np.ndarray  # from 0 in each piece; a blank's is that of its token
    order: np.ndarray  # when a token comes in the order of its piece, from 0; a blank's is that of its token
    mark: np.ndarray  # 1 at blanks
    source: np.ndarray  # which document of the corpus, from 0; -1 at padding


@dataclass(frozen=True, eq=False)
class PermutedNoise(Noise):
    """Draws an order for each document of a row, and asks for the last `share` of it; never for a document's first token."""

    said: PermutedLM

    @classmethod
    def of(cls, said: PermutedLM, seq_len: int, tokenizer: Tokenizer) -> PermutedNoise:
        """Raises UsageError where nothing would be predicted. Any tokenizer will do: what asks is no token of its own."""
        check_hides(said, said.share, seq_len)
        return cls(said)

    def __call__(self, batch: Batch, rngs: Sequence[np.random.Generator]) -> PermutedRows:
        order = np.zeros_like(batch.input_ids)
        asked = np.zeros(order.shape, dtype=bool)
        for i, rng in enumerate(rngs):
            for number in range(1, int(batch.document[i].max()) + 1):
                here = batch.document[i] == number
                n = int(here.sum())
                if n > 1:
                    drawn = permuted(n, rng, share=self.said.share, mean_length=self.said.mean_length)
                    order[i, here], asked[i, here] = drawn.order, drawn.predicted

        def with_blanks(field: np.ndarray, padding: int) -> np.ndarray:
            blanks, _ = padded([values[places] for values, places in zip(field, asked, strict=True)], padding)
            return np.concatenate([field, blanks], axis=1)

        mark = with_blanks(np.ones_like(order), 0)
        mark[:, : order.shape[1]] = 0
        ids = with_blanks(batch.input_ids, 0)
        return PermutedRows(
            input_ids=np.where(mark > 0, 0, ids),
            labels=np.where(mark > 0, ids, NOT_PREDICTED),
            document=with_blanks(batch.document, 0),
            positions=with_blanks(batch.positions, 0),
            order=with_blanks(order, 0),
            mark=mark,
            source=with_blanks(batch.source, -1),
        )

    def load(self, rows: PermutedRows) -> Workload:
        return Workload(batch=1, query=-(-int((rows.document > 0).sum()) // len(rows.document)))


class PermutedObjective(Objective[PermutedLM]):
    """For models of two streams; rows are `PermutedRows`."""

    noise = PermutedNoise.of

    def refuses(self) -> str | None:
        if self.spec.encoder is not None or not has_two_streams(self.spec):
            return "it has no second stream, of blanks that ask for a token without seeing it (XLNet's TwoStreams and Blanks)"
        return no_vocabulary_head(self.spec)

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        return {
            "input_ids": on(device, rows.input_ids),
            "attention_mask": on(device, rows.document),
            "position_ids": on(device, rows.positions),
            "facts": {"order": on(device, rows.order), "mark": on(device, rows.mark)},
            "output_logits": False,
        }
