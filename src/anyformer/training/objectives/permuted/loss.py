"""Permutation language modelling: tokens from those before them in a random order. Yang et al. 2019 (XLNet), arXiv:1906.08237."""

from __future__ import annotations

from anyformer.layers.attention import AttentionSpec
from anyformer.layers.two_streams import BlanksSpec, TwoStreams
from anyformer.spec import ModelSpec
from anyformer.training.objectives.objective import LossContext, Losses, Rows, losses_of_labels, no_vocabulary_head, on


class PermutedObjective:
    """For models of two streams; rows are `noise.permuted.PermutedRows`."""

    def refuses(self, spec: ModelSpec) -> str | None:
        if spec.encoder is not None or not has_two_streams(spec):
            return "it has no second stream, of blanks that ask for a token without seeing it (XLNet's TwoStreams and Blanks)"
        return no_vocabulary_head(spec)

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        inputs = {
            "input_ids": on(by.device, rows.input_ids),
            "attention_mask": on(by.device, rows.document),
            "position_ids": on(by.device, rows.positions),
            "facts": {"order": on(by.device, rows.order), "mark": on(by.device, rows.mark)},
        }
        return losses_of_labels(by, inputs, on(by.device, rows.labels))


def has_two_streams(spec: ModelSpec) -> bool:
    """Whether blanks are embedded, and every attention keeps them from being seen."""
    masks = [value.mask for value in spec.stack.nested() if isinstance(value, AttentionSpec)]
    blanks = any(isinstance(value, BlanksSpec) for value in spec.stack.embedding.nested())
    return blanks and all(any(isinstance(part, TwoStreams) for part in (mask, *mask.nested())) for mask in masks)
