"""Decoders that see a prefix from both sides: Raffel et al. 2020 (T5), arXiv:1910.10683, section 3.2.1.

The weights are those of the causal decoder, so that one may be trained on as the other (U-PaLM: arXiv:2210.11399).
"""

from __future__ import annotations

from anyformer.errors import SpecError
from anyformer.families.compose import edited
from anyformer.layers import Causal, Prefix
from anyformer.spec import ModelSpec


def prefixed(model: ModelSpec) -> ModelSpec:
    """A decoder with Causal() | Prefix() for every Causal() in its masks: all see the tokens of type 0.

    Raises SpecError for a model with an encoder, and for one without causal masks.
    """
    if model.encoder is not None:
        raise SpecError("a model with an encoder has no prefix: what comes first is read there")

    found = edited(model, Causal, lambda causal: causal | Prefix())
    if found == model:
        raise SpecError("the model has no causal mask, so that every token sees all others as it is")
    return found
