"""`is_causal`, which transformers asks of every configuration as it makes masks: where it is false, a decoder's tokens see ahead.

So are decoders released that make vectors of texts (gte-Qwen2: Li et al. 2023, arXiv:2308.03281; LLM2Vec: arXiv:2404.05961).
"""

from __future__ import annotations

from typing import Any

from anyformer.errors import AnyformerError
from anyformer.families.compose import bidirectional, causal
from anyformer.families.hf.mapping import Family
from anyformer.families.hf.settings import CAUSAL, Settings
from anyformer.layers.causality import own_masks, sees_later_tokens
from anyformer.spec import ModelSpec, Spec


def either_way(family: Family) -> Family:
    """The family with what its class computes where `is_causal` is said: masks to both sides, or a refusal."""

    def to_spec(settings: Settings) -> ModelSpec:
        named, said = settings.names(CAUSAL), bool(settings.written(CAUSAL))
        spec = family.to_spec(settings)
        if named and not said and not family.fixed_masks:
            return spec.but(stack=bidirectional(spec.stack))
        if named and said in _seeing_ahead(spec):
            raise settings.refusal(CAUSAL, "changes a mask of this class, which is not computed here")
        return spec

    def to_config(spec: ModelSpec) -> dict[str, Any]:
        if family.fixed_masks or True not in _seeing_ahead(spec.stack) or is_encoder(spec):
            return family.to_config(spec)
        return {**family.to_config(spec.but(stack=causal(spec.stack))), CAUSAL: False}

    def is_encoder(spec: ModelSpec) -> bool:
        """Whether the class shows later tokens by itself; what it cannot be told of such masks says that it does not."""
        try:
            nearest = family.to_spec(Settings(family.to_config(spec), family.hf_type))
        except AnyformerError:
            return False
        return True in _seeing_ahead(nearest.stack)

    return family._replace(to_spec=to_spec, to_config=to_config)


def _seeing_ahead(spec: Spec) -> set[bool]:
    """Whether tokens see later ones of their own text, of each attention."""
    return {sees_later_tokens(mask) for mask in own_masks(spec)}
