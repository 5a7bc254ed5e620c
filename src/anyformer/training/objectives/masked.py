"""Masked language modelling: hidden tokens from those on both sides. Devlin et al. 2019 (BERT), arXiv:1810.04805."""

from __future__ import annotations

from anyformer.layers.attention import has_prefix
from anyformer.layers.causality import later_tokens_seen
from anyformer.spec import ModelSpec
from anyformer.training.objectives.causal import inputs_of
from anyformer.training.objectives.objective import (
    LossContext,
    Losses,
    Rows,
    losses_of_labels,
    no_vocabulary_head,
    on,
)


class MaskedObjective:
    """For encoders; rows are `text.Batch` with labels at the hidden places."""

    def refuses(self, spec: ModelSpec) -> str | None:
        return not_an_encoder(spec) or no_vocabulary_head(spec, "mlm")

    def __call__(self, by: LossContext, rows: Rows) -> Losses:
        return losses_of_labels(by, inputs_of(rows, by.device), on(by.device, rows.labels))


def not_an_encoder(spec: ModelSpec) -> str | None:
    """Why a model does not read a text from both sides, or None."""
    if spec.encoder is not None:
        return "it is an encoder and a decoder; use SpanCorruption or Denoising, which write what was hidden"
    if has_prefix(spec):
        return "its masks have a prefix, after which they are causal; use PrefixLM"
    if later_tokens_seen(spec.stack) is None:
        return "its masks are causal, so that no token sees what comes after it; use CausalLM"
    return None
