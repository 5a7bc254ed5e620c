"""A text written from what noise left of it, with teacher forcing: by a decoder beside an encoder, or by one that sees the source
from both sides, both in one row.

Raffel et al. 2020 (T5), arXiv:1910.10683, section 3.2.1 (prefix language model); Dong et al. 2019 (UniLM), arXiv:1905.03197.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.layers.causality import later_tokens_seen, own_masks
from anyformer.layers.head import Head
from anyformer.layers.mask import Prefix
from anyformer.model import Output
from anyformer.spec import ModelSpec
from anyformer.training.data.feed import Rows
from anyformer.training.objectives.architecture import no_vocabulary_head
from anyformer.training.objectives.denoising import RestoredText
from anyformer.training.objectives.denoising.noise import noise_for
from anyformer.training.objectives.objective import Objective, on
from anyformer.training.objectives.seq2seq.loss import decoder_refusal, pairs_of


class RestoringObjective(Objective[RestoredText]):
    """For models with an encoder, and decoders whose masks have a prefix; rows are `NoisyPairs`, several documents in each."""

    noise = staticmethod(noise_for)

    def refuses(self) -> str | None:
        return prefix_refusal(self.spec) if self.spec.encoder is None else decoder_refusal(self.spec)

    @property
    def by_place(self) -> bool:
        return self.spec.encoder is not None

    def asked(self, rows: Rows, device: torch.device, *, alone: bool = True) -> dict[str, Any]:
        """With an encoder pairs; without one a document is one sequence of a decoder whose masks have a prefix.

        That is the token that begins an answer, the source without its end, the target. Up to the target it is the prefix.
        """
        if self.spec.encoder is not None:
            return pairs_of(rows, device, rows.source_document, rows.target_document)
        one = in_one_row(rows)
        inputs = {name: on(device, one[name]) for name in one if name != "predicts"}
        return {**inputs, "output_logits": False}

    def read(self, head: Head, out: Output, rows: Rows) -> Tensor:
        """In one row the last token of a prefix predicts the first of the target."""
        hidden = out.read_by(head)
        if self.spec.encoder is not None:
            return hidden
        at = on(hidden.device, in_one_row(rows)["predicts"])[..., None]
        return hidden.gather(1, at.expand(-1, -1, hidden.shape[-1]))


def prefix_refusal(spec: ModelSpec) -> str | None:
    """Why an architecture without an encoder cannot learn so, or None."""
    parts = [part for mask in own_masks(spec.stack) for part in mask.nested(Prefix)]
    if not parts:
        return (
            "it has no encoder to read what noise left, and none of its masks has a prefix that is seen from both sides; "
            "use CausalLM for a decoder, MaskedLM for an encoder, or masks such as Causal() | Prefix() "
            "(families.prefix.prefixed)"
        )
    sized = next((part.size for part in parts if part.size is not None), None)
    if sized is not None:
        return f"its prefix is of {sized} tokens in any text, be they to be predicted; use Prefix() without a size"
    if mask := later_tokens_seen(spec.stack, after_prefix=True):
        return f"its {mask} mask lets a token see the ones after the prefix that it has to predict"
    return no_vocabulary_head(spec)


def in_one_row(rows: Rows) -> dict[str, np.ndarray]:
    """Inputs of a decoder, each [batch, token] with all sources of a row first, and the place that `predicts` each label.

    Masks go by documents and positions, so that a target need not stand next to its source.
    """
    source, target = rows.source_document, rows.target_document
    first, last = _edges(source)
    begins, _ = _edges(target)
    ids = np.roll(rows.source_ids, 1, axis=1)
    ids[first] = rows.target_ids[begins]
    start, stop = np.nonzero(first)[1], np.nonzero(last)[1]
    # Places of a row from one beginning to the next are of one document: which, counted over all rows.
    read, written = (np.maximum(0, marks.ravel().cumsum().reshape(marks.shape) - 1) for marks in (first, begins))
    places, later = np.arange(source.shape[1]), np.arange(target.shape[1])
    at_begin = np.nonzero(begins)[1]
    positions = later - at_begin[written] + (stop - start)[written]
    return {
        "input_ids": np.concatenate([np.where(source > 0, ids, 0), np.where(begins, 0, rows.target_ids)], axis=1),
        "attention_mask": np.concatenate([source, np.where(begins, 0, target)], axis=1),
        "position_ids": np.concatenate(
            [np.where(source > 0, places - start[read], 0), np.where((target > 0) & ~begins, positions, 0)], axis=1
        ),
        "token_type_ids": np.concatenate([np.zeros_like(source), np.ones_like(target)], axis=1),
        "predicts": np.where(begins, stop[written], len(places) + later),
    }


def _edges(document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each document of a row begins, and where it ends; bool [batch, token]."""
    real = document > 0
    before, after = np.pad(document, ((0, 0), (1, 0)))[:, :-1], np.pad(document, ((0, 0), (0, 1)))[:, 1:]
    return real & (before != document), real & (after != document)
